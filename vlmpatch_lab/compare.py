"""Compares recorded gradients. Runs in a stack's environment (the development one has no torch)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

Gradients = dict[str, torch.Tensor]
# A tensor's difference is measured against its own largest entry, but never against less than this
# part of the largest entry of all: some gradients are zero by mathematics (an attention key's bias)
# and hold nothing but rounding.
FLOOR = 1e-4


def folders(got: Path, right: Path | None) -> dict[str, Any]:
    """How the ranks of one cell compare with each other and with the same cell done right."""
    mine = [torch.load(path) for path in sorted(got.glob("rank*.pt"))]
    report: dict[str, Any] = {"tensors": len(mine[0])}
    report["between_ranks"], report["between_ranks_at"] = _largest(mine[1:], mine[:1] * len(mine[1:]))
    if right is not None:
        theirs = [torch.load(path) for path in sorted(right.glob("rank*.pt"))]
        if len(theirs) != len(mine):
            raise RuntimeError(f"{right} holds no complete reference: {len(theirs)} ranks")
        absent = {name for a, b in zip(mine, theirs, strict=True) for name in missing(a, b)}
        report["missing"] = sorted(absent)
        report["difference"], report["difference_at"] = _largest(mine, theirs)
    return report


def missing(got: Gradients, right: Gradients) -> list[str]:
    """Parameters that learn in the right run and get nothing, or only zeros, in this one."""
    return [name for name, value in right.items() if value.any() and not _any(got.get(name))]


def difference(got: Gradients, right: Gradients) -> tuple[float, str]:
    """The largest relative difference over all tensors that either has, and where it is."""
    floor = FLOOR * max((float(value.abs().max()) for value in right.values()), default=0.0)
    worst, where = 0.0, ""
    for name in sorted({*got, *right}):
        a, b = got.get(name), right.get(name)
        a = torch.zeros_like(b) if a is None else a
        b = torch.zeros_like(a) if b is None else b
        scale = max(float(b.abs().max()), floor)
        relative = float((a - b).abs().max()) / scale if scale else 0.0
        if not relative <= worst:  # also when it is not a number
            worst, where = relative, name
    return worst, where


def _largest(got: list[Gradients], right: list[Gradients]) -> tuple[float, str]:
    return max((difference(a, b) for a, b in zip(got, right, strict=True)), key=_badness)


def _badness(found: tuple[float, str]) -> float:
    return float("inf") if found[0] != found[0] else found[0]


def _any(value: torch.Tensor | None) -> bool:
    return value is not None and bool(value.any())
