"""Fine-tune Qwen2-VL with gradient checkpointing, on questions with and without an image.

    torchrun --nproc_per_node 2 -m tiny_vl.train --model Qwen/Qwen2-VL-2B-Instruct --data rows.jsonl …

A row is ``{"image": "a.png", "question": "…", "answer": "…"}``; ``image`` may be left out. Without
``--model`` a tiny one is made, and rows for it: what the tests run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import vlmpatch  # first: what it patches is imported below

LOCK = Path(__file__).resolve().parents[1] / "vlmpatch.lock"
# Which patches act on this stack was looked at once, by people. Another set is a decision, and no accident.
vlmpatch.require("gradient-checkpointing-default", "batches-without-images", lock=str(LOCK))

import torch  # noqa: E402
from PIL import Image  # noqa: E402
from transformers import (  # noqa: E402
    AutoProcessor,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

Row = dict[str, torch.Tensor]
VISION_START, VISION_END, IMAGE = 3, 4, 5  # of the tiny model
PATCHES = 16  # of its images, 4 by 4


def tiny_model() -> Qwen2VLForConditionalGeneration:
    """A model of 0.1 million parameters with the real one's parts."""
    text = {
        "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2, "patch_size": 8}
    tokens = {
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
        "image_token_id": IMAGE,
    }
    torch.manual_seed(0)
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **tokens))


def tiny_rows(count: int) -> list[Row]:
    """Rows for it, every other one without an image."""
    chance = torch.Generator().manual_seed(0)
    return [_tiny_row(chance, with_image=number % 2 == 0) for number in range(count)]


def _tiny_row(chance: torch.Generator, with_image: bool) -> Row:
    ids = torch.randint(10, 60, (1, 12), generator=chance)
    if not with_image:
        return {"input_ids": ids, "labels": ids.clone()}
    image = torch.tensor([[VISION_START, *[IMAGE] * (PATCHES // 4), VISION_END]])
    ids = torch.cat([image, ids], dim=1)
    pixels = torch.randn(PATCHES, 2 * 3 * 8 * 8, generator=chance)
    labels = ids.masked_fill(ids < 10, -100)
    grid = torch.tensor([[1, 4, 4]])
    return {"input_ids": ids, "labels": labels, "pixel_values": pixels, "image_grid_thw": grid}


def read_rows(data: Path, processor: Any) -> list[Row]:
    """The rows of a JSONL file, as the model takes them."""
    return [
        _encoded(json.loads(line), data.parent, processor) for line in data.read_text("utf-8").splitlines()
    ]


def _encoded(row: dict[str, str], folder: Path, processor: Any) -> Row:
    image = [{"type": "image"}] if row.get("image") else []
    question = {"role": "user", "content": [*image, {"type": "text", "text": row["question"]}]}
    answer = {"role": "assistant", "content": [{"type": "text", "text": row["answer"]}]}
    prompt = processor.apply_chat_template([question, answer], tokenize=False)
    images = [Image.open(folder / row["image"]).convert("RGB")] if image else None
    encoded: Row = dict(processor(text=[prompt], images=images, return_tensors="pt"))
    special = torch.tensor(processor.tokenizer.all_special_ids)
    labels = encoded["input_ids"].masked_fill(torch.isin(encoded["input_ids"], special), -100)
    return {**encoded, "labels": labels}


def only(rows: list[Row]) -> Row:
    """One row is a batch: images of a batch are of many sizes."""
    (row,) = rows
    return row


def train(model: Any, rows: list[Row], output: Path, steps: int, deepspeed: str | None = None) -> Trainer:
    """Train ``model``, and save it to ``output``."""
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=steps,
        per_device_train_batch_size=1,
        gradient_checkpointing=True,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,
        deepspeed=deepspeed,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=only)
    trainer.train()
    trainer.save_model()
    return trainer


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--deepspeed")
    asked = parser.parse_args()
    if asked.model:
        model = Qwen2VLForConditionalGeneration.from_pretrained(asked.model)
        rows = read_rows(asked.data, AutoProcessor.from_pretrained(asked.model))
    else:
        model, rows = tiny_model(), tiny_rows(8)
    train(model, rows, asked.output, asked.steps, asked.deepspeed)


if __name__ == "__main__":
    main()
