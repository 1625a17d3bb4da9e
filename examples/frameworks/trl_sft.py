"""LoRA of Qwen2-VL, its vision tower included, with TRL's SFTTrainer.

A row is ``{"messages": [{"role": "user", "content": "<image>…"}, {"role": "assistant", "content": "…"}],
"images": ["a.png"]}``; paths are relative to the file.
"""

import vlmpatch  # isort: skip  # first: what it patches is imported below

import argparse
import json
from pathlib import Path

import datasets
import torch
import trl
from peft import LoraConfig
from transformers import AutoModelForImageTextToText, AutoProcessor

vlmpatch.require("gradient-checkpointing-default")


def read_rows(data: Path) -> datasets.Dataset:
    """The rows as TRL takes them: what is asked, what is answered, and the images."""
    rows = [json.loads(line) for line in data.read_text("utf-8").splitlines()]
    known = [
        {
            "prompt": [{"role": "user", "content": row["messages"][0]["content"].replace("<image>", "")}],
            "completion": row["messages"][1:2],
            "images": [str(data.parent / name) for name in row["images"]],
        }
        for row in rows
    ]
    return datasets.Dataset.from_list(known).cast_column("images", datasets.Sequence(datasets.Image()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_steps", type=int, default=-1)
    asked = parser.parse_args()
    arguments = trl.SFTConfig(
        output_dir=asked.output_dir,
        max_steps=asked.max_steps,
        max_length=None,  # a cut in the middle of an image's tokens is an error
        per_device_train_batch_size=1,
        gradient_checkpointing=True,
        bf16=torch.cuda.is_available(),
        learning_rate=1e-4,
        logging_steps=1,
        report_to="none",
    )
    trainer = trl.SFTTrainer(
        model=AutoModelForImageTextToText.from_pretrained(asked.model),
        args=arguments,
        train_dataset=read_rows(asked.data),
        processing_class=AutoProcessor.from_pretrained(asked.model),
        peft_config=LoraConfig(r=16, target_modules=r".*(q_proj|k_proj|v_proj|o_proj|qkv|fc1|fc2)"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
