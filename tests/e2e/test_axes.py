"""The table of axes holds, and in it nothing that is right without vlmpatch is otherwise with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.axes import table
from tests.axes.rows import ENGINES, cell_of
from tests.lab import grid

pytestmark = pytest.mark.slow
RECORDED = table.GRID.read()


@pytest.mark.parametrize(("stack", "row"), [*RECORDED])
def test_a_row_is_as_recorded(stack: str, row: str, tmp_path: Path) -> None:
    recorded = {engine: said for engine, said in RECORDED[stack, row].items() if engine in ENGINES}
    ran = table.run(stack, [cell_of(row, engine) for engine in recorded], tmp_path)
    said = {cell.engine: table.word(cell, bare, patched) for cell, bare, patched in ran}
    assert said == recorded
    assert not {*said.values()} & {*grid.HARM}
