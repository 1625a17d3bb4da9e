"""What a rank trains on: rows of the checkpoint's own data, with and without images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from vlmpatch_lab.cell import PATTERNS, Cell

Batch = dict[str, torch.Tensor]
IGNORED = -100  # the label that counts for nothing


def make_batches(cell: Cell, folder: Path, rank: int) -> list[Batch]:
    """One row of the checkpoint's own data a forward: no two ranks or forwards see the same."""
    return Samples(cell, folder).of(0, 0, rank)


class Samples:
    """The checkpoint's rows in their order: no two ranks, micro-batches or steps see the same.

    With no more rows left they begin again.
    """

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell = cell
        ready = folder / "batches.pt"
        self.ready: list[Batch] = torch.load(ready) if ready.exists() else []
        if not self.ready:
            text = (folder / "data" / "sft.jsonl").read_text()
            self.rows = [json.loads(line) for line in text.splitlines()]
            self.processor = transformers.AutoProcessor.from_pretrained(folder)

    def of(self, step: int, micro: int, rank: int) -> list[Batch]:
        """The batches of one micro-batch on one rank, one a forward."""
        turn = (step * self.cell.accumulation + micro) * self.cell.world + rank
        first = turn * self.cell.forwards
        kind = PATTERNS[self.cell.pattern](step, micro, rank)
        batches = [KINDS[kind](self, first + forward) for forward in range(self.cell.forwards)]
        return batches if self.cell.device == "cpu" else [self.moved(batch) for batch in batches]

    def moved(self, batch: Batch) -> Batch:
        dtype = getattr(torch, self.cell.dtype)
        return {
            name: value.to(self.cell.device, dtype if value.is_floating_point() else None)
            for name, value in batch.items()
        }

    def image(self, number: int) -> Batch:
        if self.ready:
            return dict(self.ready[number % len(self.ready)])
        return encode(self.processor, self.rows[number % len(self.rows)])

    def text(self, number: int) -> Batch:
        """The same row without its image."""
        if self.ready:
            return without_image(self.image(number))
        row = self.rows[number % len(self.rows)]
        first, *others = row["messages"]
        bare = {**first, "content": first["content"].removeprefix("<image>")}
        return encode(self.processor, {**row, "messages": [bare, *others], "images": []})


KINDS: dict[str, Callable[[Samples, int], Batch]] = {"image": Samples.image, "text": Samples.text}


def without_image(batch: Batch) -> Batch:
    """What is left of a ready batch: its positions that count for the loss, and no pixels."""
    shape = batch["input_ids"].shape
    counted = batch["labels"][0] != IGNORED
    if "data" in batch:
        return {name: _emptied(value, shape, counted) for name, value in batch.items()}
    return {name: value[:, counted] for name, value in batch.items() if value.shape == shape}


def _emptied(value: Any, shape: torch.Size, counted: torch.Tensor) -> Any:
    """The same of what MiniCPM is fed: one dictionary, in which every row has a list of what it shows."""
    if isinstance(value, dict):
        return {name: _emptied(inner, shape, counted) for name, inner in value.items()}
    if isinstance(value, list):
        return [[] for _ in value]
    return value[:, counted] if value.shape == shape else value[:0]


def encode(processor: Any, row: dict[str, Any]) -> Batch:
    from PIL import Image

    turns = []
    for message in row["messages"]:
        text = message["content"].removeprefix("<image>")
        image = [{"type": "image"}] if text != message["content"] else []
        turns.append({"role": message["role"], "content": [*image, {"type": "text", "text": text}]})
    images = [Image.open(path).convert("RGB") for path in row["images"]]
    prompt = processor.apply_chat_template(turns, tokenize=False)
    batch: Batch = dict(processor(text=[prompt], images=images or None, return_tensors="pt"))
    labels = batch["input_ids"].clone()
    special = torch.tensor(processor.tokenizer.all_special_ids)
    labels[torch.isin(labels, special)] = IGNORED
    return {**batch, "labels": labels}
