"""An ordinary script of TRL's: SFT of a vision-language model with LoRA, as TRL sets it up by itself."""

import argparse
import json
from pathlib import Path

import datasets
import trl
from peft import LoraConfig
from transformers import AutoModelForImageTextToText, AutoProcessor, set_seed

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output_dir", required=True)
    asked = parser.parse_args()
    rows = [json.loads(line) for line in (asked.model / "data" / "sft.jsonl").read_text().splitlines()]
    data = datasets.Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": "describe the image"}],
                "completion": row["messages"][1:2],
                "images": [str(asked.model / "data" / path) for path in row["images"]],
            }
            for row in rows
        ]
    )
    arguments = trl.SFTConfig(
        output_dir=asked.output_dir,
        per_device_train_batch_size=1,
        max_steps=4,
        max_length=None,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
        deepspeed=DEEPSPEED,
    )
    set_seed(0)
    trainer = trl.SFTTrainer(
        model=AutoModelForImageTextToText.from_pretrained(asked.model),
        args=arguments,
        train_dataset=data.cast_column("images", datasets.Sequence(datasets.Image())),
        processing_class=AutoProcessor.from_pretrained(asked.model),
        peft_config=LoraConfig(r=4, target_modules=r".*(q_proj|k_proj|v_proj|o_proj|qkv|fc1|fc2)"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
