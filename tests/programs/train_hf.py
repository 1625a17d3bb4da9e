"""An ordinary fine-tune script, as a user has it: HF Trainer, LoRA, gradient checkpointing.

Nothing in it knows vlmpatch. ``--import-vlmpatch`` stands for a user's first line, so that tests can
run the same file both ways.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

if "--import-vlmpatch" in sys.argv:
    import vlmpatch  # noqa: F401

import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import (
    AutoProcessor,
    Qwen2VLForConditionalGeneration,
    Trainer,
    TrainingArguments,
    set_seed,
)

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}
STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3}


class TwoForwards(Trainer):  # type: ignore[misc]
    """Two forwards before one backward, as preference losses do it."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        first, second = model(**inputs), model(**inputs)
        loss = first.loss + second.loss
        return (loss, second) if return_outputs else loss


class PastDdp(Trainer):  # type: ignore[misc]
    """Computes the loss past DDP's wrapper, so that nothing is averaged."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = self.model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class OwnEmbeddings(Trainer):  # type: ignore[misc]
    """Hands the model embeddings that it has computed itself, text alone."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        embeddings = self.model.get_input_embeddings()(inputs["input_ids"]) * 1.0
        outputs = model(
            inputs_embeds=embeddings, attention_mask=inputs["attention_mask"], labels=inputs["labels"]
        )
        return (outputs.loss, outputs) if return_outputs else outputs.loss


TRAINERS = {
    "": Trainer,
    "two-forwards": TwoForwards,
    "past-ddp": PastDdp,
    "own-embeddings": OwnEmbeddings,
}


def encode(processor: Any, folder: Path, row: dict[str, Any]) -> dict[str, torch.Tensor]:
    turns = []
    for message in row["messages"]:
        text = message["content"].replace("<image>", "")
        image = [{"type": "image"}] if "<image>" in message["content"] else []
        turns.append({"role": message["role"], "content": [*image, {"type": "text", "text": text}]})
    images = [Image.open(folder / "data" / path).convert("RGB") for path in row["images"]]
    prompt = processor.apply_chat_template(turns, tokenize=False)
    batch = dict(processor(text=[prompt], images=images, return_tensors="pt"))
    return {**batch, "labels": batch["input_ids"].clone()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engine", choices=["ddp", *STAGES], default="ddp")
    parser.add_argument("--forwards", type=int, choices=[1, 2], default=1)
    parser.add_argument("--past-ddp", action="store_true")
    parser.add_argument("--own-embeddings", action="store_true")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--output_dir", default="/tmp/vlmpatch-train-hf")
    parser.add_argument("--import-vlmpatch", action="store_true")
    parser.add_argument("--clipping", action="store_true", help="DeepSpeed clips, and so knows the norm")
    parser.add_argument("--no-checkpointing", action="store_true", help="what the losses should be")
    asked = parser.parse_args()

    arguments = TrainingArguments(
        output_dir=asked.output_dir,
        per_device_train_batch_size=1,
        max_steps=4,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        gradient_checkpointing=not asked.no_checkpointing,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=asked.engine == "ddp",
        ddp_backend="gloo",
        remove_unused_columns=False,
        gradient_accumulation_steps=asked.accumulation,
        deepspeed={
            **DEEPSPEED,
            **({"gradient_clipping": "auto"} if asked.clipping else {}),
            "zero_optimization": {"stage": STAGES[asked.engine]},
        }
        if asked.engine in STAGES
        else None,
    )
    set_seed(0)
    model = Qwen2VLForConditionalGeneration.from_pretrained(asked.model)
    model.enable_input_require_grads()
    targets = r".*(q_proj|k_proj|v_proj|o_proj|qkv|fc1|fc2)"
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets))

    processor = AutoProcessor.from_pretrained(asked.model)
    lines = (asked.model / "data" / "sft.jsonl").read_text().splitlines()
    rows = [encode(processor, asked.model, json.loads(line)) for line in lines[:8]]
    ways = {
        "past-ddp": asked.past_ddp,
        "two-forwards": asked.forwards == 2,
        "own-embeddings": asked.own_embeddings,
    }
    trainer_class = TRAINERS[next((way for way, wanted in ways.items() if wanted), "")]
    trainer = trainer_class(
        model=model, args=arguments, train_dataset=rows, data_collator=lambda rows: rows[0]
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
