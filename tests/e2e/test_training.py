"""Two real ranks of real stacks: what they do without vlmpatch, and that they are right with it.

"Right" is measured against the same training with checkpointing off, which in turn is measured
against plain autograd averaged by hand. The tables say what each bare run does, found by running it;
where it is right by itself, the table says that too, and why.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.lab.cells import Result
from tests.lab.outcomes import (
    APART,
    NEVER_READY,
    NO_FUNCTION,
    NO_GRAPH,
    READY_TWICE,
    REDUCED_TWICE,
    RIGHT,
    UNTRAINED,
    UNTRAINED_APART,
    Case,
    Outcome,
)
from vlmpatch_lab.cell import Cell

TF457, TF445 = "tf457-ds0182", "tf445-ds0154"
# Qwen2.5-VL came with 4.49; it checkpoints as Qwen2-VL does, so `make test` trains it in a few cells only.
FULL = os.environ.get("VLMPATCH_FULL") == "1"
KINDS = {TF457: ("qwen2_vl", *(["qwen2_5_vl"] if FULL else [])), TF445: ("qwen2_vl",)}
COLUMNS = [("lora", 1), ("lora", 2), ("full", 1), ("full", 2)]  # tuning, forwards per backward
OVERLAP = {"overlap_comm": True}

# One forward with everything trainable is right in most rows: each parameter is then used in one
# checkpointed segment only. DDP with find_unused_parameters counts at the end of the first nested
# backward and fails always.
MATRIX: dict[str, dict[str, tuple[Outcome, Outcome, Outcome, Outcome]]] = {
    TF457: {
        "ddp": (UNTRAINED_APART, READY_TWICE, RIGHT, READY_TWICE),
        "ddp_unused": (READY_TWICE, READY_TWICE, READY_TWICE, READY_TWICE),
        # ZeRO-1 reduces after the backward; only overlap_comm makes it reduce in hooks, as ZeRO-2 does.
        "zero1": (UNTRAINED, UNTRAINED, RIGHT, RIGHT),
        "zero1 overlap": (UNTRAINED, REDUCED_TWICE, RIGHT, REDUCED_TWICE),
        "zero2": (UNTRAINED, REDUCED_TWICE, RIGHT, REDUCED_TWICE),
    },
    # Before 4.47 Qwen2-VL's ViT took no part in checkpointing, so F5 is absent.
    TF445: {
        "ddp": (RIGHT, READY_TWICE, RIGHT, READY_TWICE),
        "ddp_unused": (READY_TWICE, READY_TWICE, READY_TWICE, READY_TWICE),
        "zero1": (RIGHT, RIGHT, RIGHT, RIGHT),
        "zero1 overlap": (RIGHT, REDUCED_TWICE, RIGHT, REDUCED_TWICE),
        "zero2": (RIGHT, REDUCED_TWICE, RIGHT, REDUCED_TWICE),
    },
}


def matrix() -> list[Case]:
    cases = []
    for stack, rows in MATRIX.items():
        for kind in KINDS[stack]:
            for row, outcomes in rows.items():
                engine, _, overlap = row.partition(" ")
                for (tuning, forwards), bare in zip(COLUMNS, outcomes, strict=True):
                    if bare is RIGHT and forwards == 1 and not FULL:
                        continue  # the easiest cells; two forwards of the same row stay
                    zero = OVERLAP if overlap else {}
                    cell = Cell(kind=kind, engine=engine, tuning=tuning, forwards=forwards, zero=zero)
                    cases.append(Case(stack, cell, bare))
    return cases


def switches() -> list[Case]:
    """The ways in which checkpointing is switched on."""
    ways: list[dict[str, Any]] = [
        {"checkpointing": "empty"},
        {"variant": "old_format"},
        {"variant": "override"},
        {"variant": "copied"},
    ]
    cases = []
    for stack in MATRIX:
        for how in ways:
            cases += [
                Case(stack, Cell(engine="ddp_unused", **how), READY_TWICE),
                Case(stack, Cell(engine="zero2", forwards=2, **how), REDUCED_TWICE),
            ]
        cases += [
            # Nobody called enable_input_require_grads(): reentrant segments then cut the whole graph.
            Case(stack, Cell(variant="old_flag", engine="zero2"), NO_FUNCTION),
            Case(stack, Cell(input_grads=False), NO_GRAPH if stack == TF457 else RIGHT),
            Case(stack, Cell(checkpointing="nonreentrant", engine="ddp_unused", forwards=2), RIGHT),
            Case(stack, Cell(tuning="lora_llm", forwards=2), APART),
            Case(stack, Cell(steps=3), NEVER_READY if stack == TF457 else RIGHT),
            Case(stack, Cell(engine="zero2", forwards=2, steps=3), REDUCED_TWICE),
        ]
    return cases


def choices() -> list[Case]:
    """An explicit ``use_reentrant=True``: it stands where it works, and is overruled where it cannot."""
    said: dict[str, Any] = {"checkpointing": "reentrant"}
    warns = "explicit-reentrant-warning"
    return [
        Case(TF457, Cell(engine="none", **said), UNTRAINED, RIGHT),
        Case(TF457, Cell(engine="ddp", **said), UNTRAINED_APART, RIGHT),
        Case(TF457, Cell(engine="zero2", kind="qwen2_5_vl", **said), UNTRAINED, RIGHT),
        Case(TF457, Cell(engine="ddp_unused", **said), READY_TWICE, RIGHT, warns),
        Case(TF457, Cell(engine="ddp", tuning="lora_llm", forwards=2, **said), APART, RIGHT, warns),
        Case(TF457, Cell(engine="zero2", steps=3, tuning="full", **said), RIGHT),
        Case(TF457, Cell(engine="zero2", forwards=2, **said), REDUCED_TWICE, RIGHT, warns),
        Case(TF445, Cell(engine="ddp_unused", **said), READY_TWICE, RIGHT, warns),
    ]


CASES = [*matrix(), *switches(), *choices()]
Run = Callable[[str], tuple[dict[str, Result], dict[str, Result]]]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


@each_case
def test_without_vlmpatch(case: Case, run_cases: Run) -> None:
    bare, _ = run_cases(case.stack)
    case.bare.check(bare[case.cell.id], bare[case.cell.reference.id])


@each_case
def test_with_vlmpatch(case: Case, run_cases: Run) -> None:
    bare, patched = run_cases(case.stack)
    result = patched[case.cell.id]
    case.patched.check(result, bare[case.cell.reference.id])
    said = result.log.count("vlmpatch [explicit-reentrant-warning]")
    assert said == (1 if case.warns else 0), "one warning a run, or none"


@each_case
def test_the_measure_is_right(case: Case, run_cases: Run) -> None:
    """Checkpointing off on this engine is what plain autograd gives, on every rank."""
    measure = case.cell.reference
    bare, _ = run_cases(case.stack)
    RIGHT.check(bare[measure.id], bare[measure.reference.id])


def test_ranks_hold_the_same_weights_after_some_steps(run_cases: Run) -> None:
    for stack in MATRIX:
        for cell in (case.cell for case in CASES if case.stack == stack and case.cell.steps):
            bare, patched = run_cases(stack)
            digests = set(patched[cell.id].digests)
            assert len(digests) == 1, cell.id
            assert digests == set(bare[cell.reference.id].digests), cell.id
