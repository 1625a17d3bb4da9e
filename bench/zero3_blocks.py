"""Checkpointed blocks with frozen and trainable layers, and what a scenario asks for. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 16


class Interrupted(Exception):
    """Raised in the middle of a backward by the scenario ``exception``."""


class Table(nn.Embedding):  # type: ignore[misc]
    """An embedding that multiplies by its weight, as Ovis2's visual embedding table does."""

    def forward(self, weights: torch.Tensor) -> torch.Tensor:
        return weights @ self.weight


class Block(nn.Module):  # type: ignore[misc]
    """Frozen and trainable layers, and what the scenario asks for."""

    def __init__(self, scenario: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.trained = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.side = nn.Linear(WIDTH, WIDTH) if scenario == "unused" else None
        self.position = nn.Embedding(4, WIDTH) if scenario == "embedding" else None
        self.table = Table(WIDTH, WIDTH) if scenario == "table" else None
        for part in (self.norm, self.frozen, self.last, self.side, self.position, self.table):
            if part is not None:
                part.requires_grad_(False)

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        y = self.norm(x)
        if self.position is not None:
            y = y + self.position(torch.arange(4))
        y = self.trained(torch.relu(self.frozen(y)))
        if self.table is not None:
            y = self.table(y)
        if fail and y.requires_grad:
            y.register_hook(_interrupt)
        out: torch.Tensor = x + self.last(torch.relu(y))
        if self.side is not None:
            self.side(out)
        return out


class Outer(nn.Module):  # type: ignore[misc]
    """Two blocks, checkpointed one by one inside a checkpoint of both."""

    def __init__(self, scenario: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(scenario) for _ in range(2))

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Blocks(nn.Module):  # type: ignore[misc]
    """Checkpointed blocks; the first is fed an input without grad."""

    def __init__(self, scenario: str) -> None:
        super().__init__()
        block = Outer if scenario == "nested" else Block
        self.blocks = nn.ModuleList(block(scenario) for _ in range(3))
        self.checkpointing = "off"
        self.fail = False
        self.uneven = scenario == "uneven"

    def forward(self, x: torch.Tensor) -> Output:
        skipped = self.uneven and torch.distributed.get_rank()  # rank 1 never calls the first block
        for number, block in enumerate(self.blocks):
            if number < skipped:
                continue
            fail = self.fail and number == len(self.blocks) - 1
            if self.checkpointing == "off":
                x = block(x, fail)
            else:
                x = checkpoint(block, x, fail, use_reentrant=self.checkpointing == "reentrant")
        return Output(x.square().mean())


@dataclass
class Output:
    """What a model returns, as far as it is used here."""

    loss: torch.Tensor


def _interrupt(gradient: Any) -> None:
    raise Interrupted
