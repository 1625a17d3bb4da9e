"""The core on every torch users have, each with what its months had beside it.

``gradient_checkpointing_kwargs={}`` leaves the choice to torch, on every transformers. The oldest and the
newest torch run always, those between them before a release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.zero3_runs import Run
from tests.e2e.test_zero3 import EXACT, FIRST_BLOCK, perform
from tests.lab.cells import Result
from tests.lab.outcomes import READY_TWICE, REDUCED_TWICE, RIGHT, Case, Outcome
from vlmpatch_lab.cell import Cell

ALWAYS, BEFORE_A_RELEASE = (
    ("torch241", "torch2150"),
    ("torch212", "torch251", "torch260", "torch280", "torch2100"),
)
ZERO3_TWICE = Outcome("F2: reduced twice under ZeRO-3", error="AssertionError")
RELEASED = Outcome("F4: released before its backward", error="have different metadata")
NO_STRICT_ZIP = Outcome("D: a group of parameters was dropped", error=r"zip\(\) argument 2 is longer")
# torch 2.5 compares a frozen parameter that was emptied, DeepSpeed 0.19.3 no longer empties it.
CRASH = {"torch251", "torch260", "torch280", "torch2100"}
WITHOUT_ZERO = {"torch212"}  # its gloo has no _allgather_base
STRICT_ZIP = {"torch2100": NO_STRICT_ZIP, "torch280": RIGHT}  # both sides of deepspeed-dropped-group's bound
GATHERS = {"torch241": "qwen2_vl", "torch2150": "qwen2_5_vl"}
# From transformers 5 on the patch embedding's output requires grad and is gathered for a backward.
HOOKED = {"torch2150": 3 * 2 * 8 * 8 * 32}


def of(stack: str) -> list[Case]:
    """What leaves the choice to torch, and what torch's own metadata check decides."""
    said: dict[str, Any] = {"checkpointing": "empty", "forwards": 2}
    cases = [
        Case(stack, Cell(engine="ddp_unused", **said), READY_TWICE),
        Case(stack, Cell(engine="ddp", tuning="full", **said), READY_TWICE),
    ]
    if stack in WITHOUT_ZERO:
        return cases
    cases += [
        Case(stack, Cell(engine="zero2", **said), REDUCED_TWICE),
        Case(stack, Cell(engine="zero2", tuning="full", **said), REDUCED_TWICE),
        Case(stack, Cell(engine="zero3", **said), ZERO3_TWICE),
        Case(stack, Cell(engine="zero3", tuning="full", **said), ZERO3_TWICE),
        Case(
            stack, Cell(engine="zero3", checkpointing="nonreentrant"), RELEASED if stack in CRASH else RIGHT
        ),
    ]
    if stack in STRICT_ZIP:
        cell = Cell(engine="zero2", trainer="hf_own_optimizer", checkpointing="nonreentrant")
        cases.append(Case(stack, cell, STRICT_ZIP[stack]))
    return cases


SHORT = {("ddp_unused", "lora"), ("zero2", "full"), ("zero3", "lora")}


def parameter(case: Case) -> Any:
    short = case.stack in ALWAYS and (case.cell.engine, case.cell.tuning) in SHORT
    return pytest.param(case, id=case.id, marks=() if short else pytest.mark.slow)


CASES = [parameter(case) for stack in (*ALWAYS, *BEFORE_A_RELEASE) for case in of(stack)]
Ran = Callable[[str], tuple[dict[str, Result], dict[str, Result]]]


@pytest.mark.parametrize("case", CASES)
def test_core(case: Case, run_cases: Ran) -> None:
    bare, patched = run_cases(case.stack)
    measure = case.cell.reference
    case.bare.check(bare[case.cell.id], bare[measure.id])
    RIGHT.check(patched[case.cell.id], bare[measure.id])
    if not case.cell.trainer:
        RIGHT.check(bare[measure.id], bare[measure.reference.id])
    states = patched[case.cell.id].patches
    assert states["torch-checkpoint-default"] == "applied"
    assert "conflict" not in states.values()


@pytest.mark.parametrize("tuning", ["lora", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("stack", GATHERS)
def test_no_third_gather(stack: str, tuning: str, tmp_path: Path) -> None:
    mine = Run(
        kind=GATHERS[stack], tuning=tuning, checkpointing="nonreentrant", patched=True, steps=3, world=1
    )
    off, bare = replace(mine, checkpointing="off", patched=False), replace(mine, patched=False)
    results = perform(stack, [off, bare, mine], tmp_path)
    assert all(result["error"] is None for result in results.values()), results
    assert results[mine.id]["difference"] <= EXACT
    assert results[mine.id]["to_off"] <= EXACT
    assert results[mine.id]["left"] == []
    floor, without, with_it = (results[run.id]["steps"][-1] for run in (off, bare, mine))
    assert without["elements"] > 1.1 * floor["elements"]
    assert with_it["elements"] <= 1.03 * floor["elements"] + HOOKED.get(stack, 0)
    assert with_it["calls"] <= floor["calls"] + FIRST_BLOCK + (stack in HOOKED)
