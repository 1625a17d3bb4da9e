"""Rows of a batch without their padding, and back."""

from __future__ import annotations

from typing import Any

import torch


def index_first_axis(values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return values[indices]


def unpad_input(values: torch.Tensor, mask: torch.Tensor, *more: Any) -> tuple[Any, ...]:
    """``[batch, length, …]`` to ``[all tokens, …]``, where they stood, and where each row begins."""
    lengths = mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return values.flatten(0, 1)[indices], indices, starts, int(lengths.max()), lengths


def pad_input(values: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """The way back; what was padding is zero."""
    made = values.new_zeros(batch * length, *values.shape[1:])
    return made.index_put((indices,), values).view(batch, length, *values.shape[1:])
