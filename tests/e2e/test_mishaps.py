"""Runs that go wrong and go on (``tests/mishaps``): vlmpatch changes no bit of those that are right bare."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import grid
from tests.mishaps import table
from tests.mishaps.cell import ACCUMULATION, ENGINES, MISHAPS, Cell

# One of each kind; with vlmpatch all are right.
FEW = (
    *("nan-loss-skipped:zero2:1", "large-loss-skipped:zero1:1", "nan-gradient-skipped:zero2_fp16:1"),
    *("error-in-forward:zero3:2", "error-in-backward-skipped:zero2_offload:2"),
    *("error-in-recompute-zeroed:zero3:1", "error-among-buckets-zeroed:zero2:2"),
    *("memory-at-one-outset-retried:zero2:1", "memory-in-backward-halved:zero3:2"),
    *("overflow-in-loss:zero2_fp16:2", "resumed:zero2:2", "saved:zero3:2"),
    *("large-loss-zeroed-by-model:zero2:2", "large-loss-zeroed-by-model:zero1:1"),
    *("large-loss-zeroed-by-model:zero2_offload:2", "large-loss-zeroed-by-engine:zero3:1"),
    *("large-loss-zeroed-by-model:zero3:2", "large-loss-zeroed-by-model:zero3_offload:1"),
    *("frozen:zero2:1", "frozen:zero3_offload:1", "through-another:zero3:1"),
    *("unused-resumed:zero3:1", "thawed-resumed:zero2:1"),
)
STACKS = sorted({stack for stack, *_ in table.GRID.read()})


def test_a_few_end_right(tmp_path: Path) -> None:
    ran = table.run("tf457-ds0198", [Cell.of(name) for name in FEW], tmp_path)
    assert {
        str(cell): table.word(cell, *reports) for cell, *reports in ran if not_right(cell, *reports)
    } == {}


def not_right(cell: Cell, bare: table.Report, patched: table.Report) -> bool:
    return table.word(cell, bare, patched) not in ("=", "fixed")


@pytest.mark.slow
@pytest.mark.parametrize("stack", STACKS)
def test_all_are_as_recorded(stack: str, tmp_path: Path) -> None:
    """``data/mishaps.csv`` holds, and in it nothing that is right without vlmpatch is otherwise with it."""
    ran = table.run(stack, table.cells_of(MISHAPS, ENGINES, ACCUMULATION), tmp_path)
    recorded = table.GRID.read()
    for cell, bare, patched in ran:
        said = table.word(cell, bare, patched)
        assert said == recorded[stack, cell.mishap, str(cell.accumulation)][cell.engine], str(cell)
        assert said not in grid.HARM, str(cell)
