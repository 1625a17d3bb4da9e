"""Compares recorded gradients. Runs in a stack's environment (the development one has no torch)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

Gradients = dict[str, torch.Tensor]
# Of one rank: "steps", the gradients of each, and "parameters", what the steps changed in them.
Record = dict[str, Any]
# A tensor's difference is measured against its own largest entry, but never against less than this
# part of the largest entry of all: some gradients are zero by mathematics (an attention key's bias)
# and hold nothing but rounding, 1e-9 of the largest and more where float32 carries 1e-7.
FLOOR = 1e-3


def folders(got: Path, right: Path | None) -> dict[str, Any]:
    """How the ranks of one cell compare with each other and with the same cell done right.

    A measure made by one process stands for every rank. ``difference`` is the largest of all steps that
    were recorded, ``parameters`` that of what the steps made of the parameters.
    """
    mine = [_read(path) for path in sorted(got.glob("rank*.pt"))]
    first = [record["steps"][0] for record in mine]
    report: dict[str, Any] = {"tensors": len(first[0])}
    report["between_ranks"], report["between_ranks_at"] = _worst(
        _steps(*pair) for pair in zip(mine[1:], mine[:1] * len(mine[1:]), strict=True)
    )
    if right is not None:
        theirs = [_read(path) for path in sorted(right.glob("rank*.pt"))]
        if len(theirs) not in (1, len(mine)):
            raise RuntimeError(f"{right} holds no complete reference: {len(theirs)} ranks")
        theirs *= len(mine) // len(theirs)
        pairs = list(zip(mine, theirs, strict=True))
        absent = {name for a, b in pairs for x, y in _each_step(a, b) for name in missing(x, y)}
        report["missing"] = sorted(absent)
        report["difference"], report["difference_at"] = _worst(_steps(a, b) for a, b in pairs)
        ranks = [[difference(*step)[0] for step in _each_step(*pair)] for pair in pairs]
        report["by_step"] = [max(step) for step in zip(*ranks, strict=True)]
        if "parameters" in mine[0]:
            report["parameters"], report["parameters_at"] = _worst(
                difference(a["parameters"], b["parameters"]) for a, b in pairs
            )
    return report


def _read(path: Path) -> Record:
    """What a rank recorded; until cells compared steps it was the gradients of one."""
    found: dict[str, Any] = torch.load(path)
    return found if "steps" in found else {"steps": [found]}


def _each_step(got: Record, right: Record) -> Iterator[tuple[Gradients, Gradients]]:
    return zip(got["steps"], right["steps"], strict=True)


def _steps(got: Record, right: Record) -> tuple[float, str]:
    found = [difference(*pair) for pair in _each_step(got, right)]
    return _worst((worst, f"step {step}: {where}") for step, (worst, where) in enumerate(found))


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


def _worst(found: Iterable[tuple[float, str]]) -> tuple[float, str]:
    return max(found, key=_badness, default=(0.0, ""))


def _badness(found: tuple[float, str]) -> float:
    return float("inf") if found[0] != found[0] else found[0]


def _any(value: torch.Tensor | None) -> bool:
    return value is not None and bool(value.any())
