"""An ordinary script of TRL's: GRPO of a vision-language model, checkpointed as TRL does it by itself.

A file for each rank says what was answered at every step, and how many modules are checkpointed after it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import datasets
import trl
from transformers import AutoProcessor, Qwen2VLForConditionalGeneration, TrainerCallback, set_seed


class Record:
    """What a rank has made, step by step."""

    def __init__(self) -> None:
        self.completions: list[list[int]] = []
        self.checkpointed: list[int] = []

    def reward(self, completion_ids: list[list[int]], **columns: Any) -> list[float]:
        """A reward that any other token would change."""
        self.completions.extend(completion_ids)
        return [sum(ids) % 97 / 97 for ids in completion_ids]

    def callback(self) -> TrainerCallback:
        record = self

        class Flags(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
                on = [getattr(module, "gradient_checkpointing", False) for module in model.modules()]
                record.checkpointed.append(sum(on))

        return Flags()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--no-checkpointing", action="store_true")
    asked = parser.parse_args()
    rows = [json.loads(line) for line in (asked.model / "data" / "sft.jsonl").read_text().splitlines()]
    data = datasets.Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": "describe the image"}],
                "image": str(asked.model / "data" / row["images"][0]),
            }
            for row in rows
        ]
    ).cast_column("image", datasets.Image())
    processor = AutoProcessor.from_pretrained(asked.model, padding_side="left")
    arguments = trl.GRPOConfig(
        output_dir=str(asked.output_dir),
        per_device_train_batch_size=2,
        num_generations=2,
        max_prompt_length=None,
        max_completion_length=12,
        # What stands for an image has no place in an answer.
        generation_kwargs={"suppress_tokens": processor.tokenizer.all_special_ids},
        max_steps=2,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
        gradient_checkpointing=not asked.no_checkpointing,
        use_cpu=True,
        ddp_backend="gloo",
    )
    set_seed(0)
    record = Record()
    trainer = trl.GRPOTrainer(
        model=Qwen2VLForConditionalGeneration.from_pretrained(asked.model),
        reward_funcs=record.reward,
        args=arguments,
        train_dataset=data,
        processing_class=processor,
        callbacks=[record.callback()],
    )
    trainer.train()
    made = asked.output_dir / f"rank{arguments.process_index}.json"
    made.write_text(json.dumps({"completions": record.completions, "checkpointed": record.checkpointed}))


if __name__ == "__main__":
    main()
