"""Rotary positions, by halves."""

from __future__ import annotations

from typing import Any

import torch


def apply_rotary_emb(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **more: Any) -> torch.Tensor:
    """``x`` is ``[batch, length, heads, size]``; ``cos`` and ``sin`` are ``[length, size / 2]``."""
    one, other = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)
