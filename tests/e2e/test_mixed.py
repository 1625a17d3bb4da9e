"""Batches with and without images on different ranks: what dies or is wrong bare is right patched.

"Right" is the same samples in one process without an engine, checkpointing off: the gradients of every
step, and what the optimizer made of the parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import cells, envs
from tests.lab.cells import Result
from vlmpatch_lab.cell import Cell

TF457, TF523 = "tf457-ds0182", "tf523-ds0198"
GRADIENTS = 1e-5
# Adam divides by the gradient's size: what is rounding in a gradient is larger in a step.
PARAMETERS = 1e-3
Results = tuple[dict[str, Result], dict[str, Result]]


def mixed(kind: str, engine: str, tuning: str, pattern: str = "one-rank-text", accumulation: int = 1) -> Cell:
    return Cell(kind, engine, tuning, compared=2, pattern=pattern, accumulation=accumulation)


SHORT = {
    TF457: [
        mixed("qwen2_5_vl", "ddp", "lora"),
        mixed("qwen2_5_vl", "zero2", "full", "alternating"),
        mixed("qwen2_5_vl", "zero3", "lora", "alternating"),
        mixed("llava", "zero3", "full"),
        mixed("llava", "fsdp2", "lora"),
    ],
    TF523: [
        mixed("qwen3_vl", "ddp", "full", "alternating"),
        mixed("qwen3_vl", "zero3", "full"),
        mixed("minicpmv4_6", "zero3", "lora", "alternating"),
        mixed("gemma3", "fsdp2", "full"),
    ],
}


@pytest.fixture(scope="session")
def run_mixed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """For a stack's name: what its cells did bare, and patched."""

    @functools.cache
    def run(name: str) -> Results:
        out: Path = tmp_path_factory.mktemp(f"mixed-{name}")
        stack, wanted = envs.read_stacks()[name], SHORT[name]
        bare = cells.run(stack, cells.with_references(wanted), out / "bare")
        patched = cells.run(stack, wanted, out / "patched", patched=True, reference=out / "bare")
        return bare, patched

    return run


@pytest.mark.parametrize(
    ("stack", "cell"), [pytest.param(s, c, id=f"{s}:{c.id}") for s, found in SHORT.items() for c in found]
)
def test_mixed_batches_train(stack: str, cell: Cell, run_mixed: Callable[[str], Results]) -> None:
    bare, patched = (results[cell.id] for results in run_mixed(stack))
    assert not is_right(bare), f"holds without us: {bare}"
    assert is_right(patched), f"{patched}\n{patched.log[-4000:]}"


def is_right(result: Result) -> bool:
    """Whether every rank's every gradient, and every parameter, is that of plain data parallel."""
    if not result.ok:
        return False
    assert result.difference is not None, f"never compared: {result}"
    assert result.parameters is not None, f"never compared: {result}"
    return (
        not result.missing
        and result.difference <= GRADIENTS
        and result.between_ranks == 0.0
        and result.parameters <= PARAMETERS
    )
