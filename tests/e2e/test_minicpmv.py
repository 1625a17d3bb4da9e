"""MiniCPM-V's fine-tune script on real stacks, unchanged: what it does with vlmpatch, and without each patch.

The script and the remote code are the stand-in of ``tests/standin``. With ``VLMPATCH_MINICPMV_CODE`` and
``VLMPATCH_MINICPMV_FINETUNE`` naming folders with the real ones, the same tests run on those.
``VLMPATCH_FULL=1`` runs the whole matrix; a part of it is the default.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import envs, launch
from tests.matrix import rows
from tests.standin import cells
from tests.standin.cells import STACKS, TF523, Cell, Trial
from tests.standin.make import make_omni
from vlmpatch.tools.cases import Case

Result = dict[str, Any]
Runs = Callable[[Trial], Callable[[Cell], Result]]
TOLERANCE = 1e-5
PLAINLY = 0.1  # a gradient said to be wrong is wrong by at least this much
MATRIX = [Trial(stack, cell) for stack in STACKS for cell in cells.matrix(stack)]
ACCUMULATED = Cell(engine="ddp", accumulate=2)


def each(trials: Iterable[Trial]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("trial", trials, ids=lambda trial: trial.id)


def lacking(case: Case) -> list[Trial]:
    """On each stack of its proof: the case's run without its patch, beside the one that has it.

    What ends the failure there as well is off in both.
    """
    cell = Cell.of(case.settings)
    right = dataclasses.replace(cell, without=case.hidden_by)
    lacks = dataclasses.replace(cell, without=(*case.hidden_by, case.patch))
    return [Trial(stack, lacks, beside=(right,)) for stack in (*case.proof, *case.slow)]


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, standin: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """For a trial: the results of its stack's cells. All collected trials of a stack share one process."""

    @functools.cache
    def of_stack(name: str) -> dict[str, Result]:
        trials = [trial for trial in _trials(request.session) if trial.stack == name]
        asked = [cell for trial in trials for cell in (*trial.beside, trial.cell)]
        return perform(name, cells.with_references(asked), standin, tmp_path_factory.mktemp(name))

    return lambda trial: lambda cell: of_stack(trial.stack)[cell.id]


def _trials(session: pytest.Session) -> Iterable[Trial]:
    for item in session.items:
        trial = item.callspec.params.get("trial") if hasattr(item, "callspec") else None
        if isinstance(trial, Trial):
            yield trial


def perform(name: str, asked: list[Cell], standin: Path, out: Path) -> dict[str, Result]:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    (out / "cells.json").write_text(json.dumps([dataclasses.asdict(cell) for cell in asked]))
    command: list[str | Path] = ["python", "-m", "tests.standin.observe", out / "cells.json"]
    command += ["--folder", standin, "--out", out]
    env = {"HF_MODULES_CACHE": str(out / "modules")}
    finished = launch.run(stack, command, limit=60 + 40 * len(asked), env=env, gloo=True)
    assert finished.rc == 0, str(finished)
    lines = [line for line in finished.output.splitlines() if line.startswith('{"cell"')]
    return {result["cell"]: result for result in map(json.loads, lines)}


def check_right(result: Result) -> None:
    assert result["rc"] == [0, 0], result
    assert result["untrained"] == [], result
    assert result["missing"] == [], result
    assert result["difference"] <= TOLERANCE, result
    assert result["between_ranks"] == 0.0, result
    assert result["same_parameters"], result
    assert result["unsaved"] == [], result


def check_error(result: Result, symptom: str) -> None:
    assert result["rc"] != [0, 0], result
    assert any(re.search(symptom, error) for error in result["errors"]), result


@each(MATRIX)
def test_the_script_trains_rightly(trial: Trial, runs: Runs) -> None:
    """Where its own use_reentrant=True would end it, that is overruled, and said once."""
    result = runs(trial)(trial.cell)
    check_right(result)
    said = len(result["warnings"].get("explicit-reentrant-warning", ()))
    assert said == cells.overruled(trial.cell), result


@each(
    [
        Trial(t.stack, t.cell.reference, beside=(dataclasses.replace(t.cell.reference, engine="zero2"),))
        for t in MATRIX
        if t.cell.engine == "zero3" and t.cell.kwargs == "own"
    ]
)
def test_zero2_and_zero3_are_the_same_training(trial: Trial, runs: Runs) -> None:
    """Checkpointing off is the measure of checkpointing on, so it must itself be right, in every step."""
    (zero2,) = trial.beside
    assert runs(trial)(trial.cell)["losses"] == pytest.approx(runs(trial)(zero2)["losses"], rel=TOLERANCE)


CASES = rows.every()
PROVEN = [
    pytest.param(
        case,
        trial,
        id=f"{trial.stack}:{case.patch}",
        marks=[pytest.mark.slow] if trial.stack in case.slow else [],
    )
    for case in CASES.values()
    if case.how == "script"
    for trial in lacking(case)
]


def check_fails(result: Result, fails: str) -> None:
    """Holds a run against what its case says of it."""
    kind, _, pattern = fails.partition(": ")
    if kind == "error":
        check_error(result, pattern)
        return
    assert result["rc"] == [0, 0], result
    assert kind in ("ranks", "difference")
    difference = result["between_ranks" if kind == "ranks" else "difference"]
    assert math.isnan(difference) or difference > TOLERANCE, (
        result
    )  # memory nobody wrote to can hold anything


@pytest.mark.parametrize(("case", "trial"), PROVEN)
def test_each_patch_is_needed_and_says_so_once(case: Case, trial: Trial, runs: Runs) -> None:
    check_fails(runs(trial)(trial.cell), case.fails)
    (right,) = trial.beside
    patched = runs(trial)(right)
    check_right(patched)
    said = patched["warnings"].get(case.patch, [])
    assert bool(said) == case.says, patched
    assert len(said) == len(set(said)), patched


@each(lacking(CASES["script-self-model"]))
def test_under_ddp_ranks_part_without_the_patch(trial: Trial, runs: Runs) -> None:
    result = runs(trial)(trial.cell)
    assert result["rc"] == [0, 0], result
    assert not result["same_parameters"]
    assert result["between_ranks"] > PLAINLY


@each([Trial(stack, ACCUMULATED) for stack in STACKS])
def test_accumulated_gradients_are_right(trial: Trial, runs: Runs) -> None:
    check_right(runs(trial)(trial.cell))


@each(lacking(CASES["script-accumulated"]))
def test_accumulated_gradients_are_twice_too_large_without_the_patch(trial: Trial, runs: Runs) -> None:
    result = runs(trial)(trial.cell)
    assert result["rc"] == [0, 0], result
    assert result["difference"] == pytest.approx(1.0, abs=1e-4)


@each(lacking(CASES["script-position-table"]))
def test_positions_are_garbage_without_the_patch(trial: Trial, runs: Runs) -> None:
    result, right = runs(trial)(trial.cell), runs(trial)(trial.cell.patched)
    check_right(right)
    assert result["rc"] == [0, 0], result
    assert result["losses"] != pytest.approx(right["losses"], rel=TOLERANCE)


@pytest.mark.slow
def test_minicpm_o_is_mended_as_well(standin: Path, tmp_path: Path) -> None:
    folder = make_omni(standin, tmp_path / "omni")
    full = Cell(engine="ddp", tuning="full")
    without = {
        patch: dataclasses.replace(full, without=(patch,))
        for patch in ("minicpmv-missing-post-init", "minicpmv-position-table")
    }
    asked = cells.with_references([full, *without.values()])
    results = perform(TF523, asked, folder, tmp_path)
    check_right(results[full.id])
    unloaded, garbage = (results[cell.id] for cell in without.values())
    check_error(unloaded, "'MiniCPMO' object has no attribute 'all_tied_weights_keys'")
    assert garbage["losses"] != pytest.approx(results[full.id]["losses"], rel=TOLERANCE)
