"""What the table of mishaps says, and what it may not say; the runs themselves are in ``tests/e2e``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.lab import grid
from tests.mishaps import table
from tests.mishaps.cell import ACCUMULATION, ENGINES, MISHAPS, PLAIN, Cell

CELL = Cell("nothing", "zero2", 1)
RIGHT, SAME = {"off": 0.0, "same": False}, {"off": 0.0, "same": True}
WRONG, ENDS = {"off": 0.1, "same": False}, {"error": "AssertionError"}


@pytest.mark.parametrize(
    ("bare", "patched", "word"),
    [
        (RIGHT, SAME, "="),
        (RIGHT, RIGHT, "harmed"),
        (RIGHT, WRONG, "harmed"),
        (RIGHT, ENDS, "harmed"),
        (WRONG, RIGHT, "fixed"),
        (ENDS, RIGHT, "fixed"),
        (WRONG, WRONG, "wrong"),
        (WRONG, ENDS, "ends now"),
        (ENDS, ENDS, "ends"),
        (ENDS, WRONG, "worse"),
    ],
)
def test_a_word_for_each(bare: dict[str, Any], patched: dict[str, Any], word: str) -> None:
    assert table.word(CELL, bare, patched) == word


def test_half_precision_is_held_to_less() -> None:
    off = {"off": 0.01, "same": True}
    assert table.is_right(Cell("nothing", "zero2_fp16", 1), off)
    assert not table.is_right(CELL, off)


def test_a_cell_has_a_name_that_says_it_all() -> None:
    every = table.cells_of(MISHAPS, ENGINES, ACCUMULATION)
    assert [Cell.of(str(cell)) for cell in every] == every
    assert {cell.mishap for cell in every} == set(MISHAPS)


def test_what_is_right_runs_in_one_process() -> None:
    for cell in table.cells_of(MISHAPS, ENGINES, ACCUMULATION):
        assert cell.measures
        assert all(measure.engine in PLAIN and measure.ranks == 1 for measure in cell.measures)


def test_a_run_that_was_cut_off_goes_on_with_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded = dataclasses.replace(table.GRID, path=tmp_path / "mishaps.csv")
    monkeypatch.setattr(table, "GRID", recorded)
    recorded.save({})
    cells = table.cells_of(["nothing"], ["ddp", "zero2"], ACCUMULATION)
    table.record("s", {cells[0]: "="})
    table.record("s", {cells[2]: "fixed"})
    assert table.unrecorded("s", cells) == [cells[1], cells[3]]
    assert table.unrecorded("t", cells) == cells


def test_nothing_on_record_is_harmed() -> None:
    found = table.GRID.read()
    assert found
    words = {word for engines in found.values() for word in engines.values()}
    assert words <= set(grid.WORDS) - set(grid.HARM)


def test_everything_is_on_record() -> None:
    stacks = {stack for stack, *_ in table.GRID.read()}
    found = {(what, engine) for what, engines in table.GRID.read().items() for engine in engines}
    for cell in table.cells_of(MISHAPS, ENGINES, ACCUMULATION):
        for stack in stacks:
            assert ((stack, cell.mishap, str(cell.accumulation)), cell.engine) in found
