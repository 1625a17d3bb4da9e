"""200 optimizer steps: the parameters of checkpointing off, bit by bit, and nothing that grows.

DDP, ZeRO-2 and ZeRO-3, LoRA (with dropout) and full tuning, two micro-batches a step.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import mixed_long
from tests.lab import envs, launch
from vlmpatch_lab.cell import Cell, write_cells

STEPS = 200
LOSES = {
    "tf457-ds0182": ("zero2",)
}  # F18: with two micro-batches a step this release is no measure by itself
SETTLED = 1  # looks until caches and threads are those of a running training
GROWTH = 1.02
ROUNDING = 1e-3  # relative to what 200 steps changed; 3e-5 was measured
STACKS = ("tf457-ds0182", "tf523-ds0198")
ENGINES, TUNINGS = ("ddp", "zero2", "zero3"), ("lora", "full")

pytestmark = pytest.mark.slow
Results = Callable[[str], tuple[dict[str, Any], dict[str, Any]]]


def cell(engine: str, tuning: str) -> Cell:
    return Cell(engine=engine, tuning=tuning, trainer="long", compared=STEPS, accumulation=2)


def off(wanted: Cell) -> Cell:
    return dataclasses.replace(wanted, checkpointing="off")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """For a stack: its cells with checkpointing off and bare, and as a user has them, patched."""

    @functools.cache
    def of_stack(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        stack = envs.read_stacks()[name]
        envs.make(stack)
        folder = tmp_path_factory.mktemp(name)
        wanted = [cell(engine, tuning) for engine in ENGINES for tuning in TUNINGS]
        loses = [one for one in wanted if one.engine in LOSES.get(name, ())]
        keeps = [one for one in wanted if one not in loses]
        right = run(stack, [off(one) for one in keeps], folder / "off", patched=False)
        right |= run(stack, [off(one) for one in loses], folder / "fixed", patched=True) if loses else {}
        return right, run(stack, wanted, folder / "patched", patched=True)

    return of_stack


def run(stack: envs.Stack, wanted: list[Cell], out: Path, *, patched: bool) -> dict[str, Any]:
    out.mkdir()
    write_cells(out / "cells.json", wanted)
    model = launch.checkpoint(stack, "qwen2_vl")
    command: list[str | Path] = ["python", "-m", "vlmpatch_lab.run", out / "cells.json", "--out", out]
    command += ["--trainers", "tests.lab.long_run", "--limit", "900", "--models", f"qwen2_vl={model}"]
    command += ["--patched"] if patched else []
    finished = launch.run(stack, command, limit=900.0 * len(wanted))
    reports = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"id": ')]
    assert len(reports) == len(wanted), str(finished)
    return {report["id"]: report for report in reports}


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stack", STACKS)
def test_the_same_parameters_and_nothing_grows(
    stack: str, engine: str, tuning: str, results: Results
) -> None:
    wanted = cell(engine, tuning)
    right, mine = (found[key] for found, key in zip(results(stack), (off(wanted).id, wanted.id), strict=True))
    assert right["error"] is None
    assert mine["error"] is None
    for rank in mine["ranks"]:
        assert rank["patches"]["torch-checkpoint-default"] == "applied"
        settled, last = rank["held"][SETTLED], rank["held"][-1]
        assert last["memory"] <= GROWTH * settled["memory"], rank["held"]
        for what in ("threads", "files", "tensors"):
            assert last[what] == settled[what], rank["held"]
        assert all(held["gathered"] == [] for held in rank["held"])
    assert [rank["losses"] for rank in mine["ranks"]] == [rank["losses"] for rank in right["ranks"]]
    digests = {rank["digest"] for report in (mine, right) for rank in report["ranks"]}
    assert len(digests) == 1, "the parameters are not those of checkpointing off"


@pytest.mark.parametrize("stack", STACKS)
def test_mixed_data_leaves_the_parameters_of_one_process(stack: str, tmp_path: Path) -> None:
    """ZeRO-3 sums in another order, and rounding grows; DDP and ZeRO-2 differ in no bit."""
    asked = mixed_long.wanted(mixed_long.ENGINES, mixed_long.TUNINGS)
    for result in mixed_long.run(stack, asked, tmp_path).values():
        assert result.ok, f"{result}\n{result.log[-4000:]}"
        assert not result.missing, result
        assert result.between_ranks == 0.0, result
        assert result.parameters is not None, result
        assert result.parameters <= ROUNDING, result
