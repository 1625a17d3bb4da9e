"""A training that was stopped and resumed ends as the one that was not, to the last bit, engine by engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import grid
from tests.resume import table

pytestmark = pytest.mark.slow
RECORDED = table.GRID.read()


@pytest.mark.parametrize(("stack", "row"), [*RECORDED])
def test_a_row_is_as_recorded(stack: str, row: str, tmp_path: Path) -> None:
    recorded = RECORDED[stack, row]
    said = {
        cell.engine: table.word(bare, patched)
        for _, cell, bare, patched in table.run(stack, [row], [*recorded], tmp_path)
    }
    assert said == recorded
    assert not {*said.values()} & {*grid.HARM}
