"""What the table of resumed trainings says, and may not say; the runs themselves are in ``tests/e2e``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab import grid
from tests.resume import table

SAME, OTHERWISE, ENDED = None, "Wrong: the losses are others", "RuntimeError: no key"


def result(error: str | None) -> Any:
    return SimpleNamespace(ok=error is None, error=error)


@pytest.mark.parametrize(
    ("bare", "patched", "word"),
    [
        (SAME, SAME, "="),
        (SAME, OTHERWISE, "harmed"),
        (SAME, ENDED, "harmed"),
        (OTHERWISE, SAME, "fixed"),
        (ENDED, SAME, "fixed"),
        (OTHERWISE, OTHERWISE, "wrong"),
        (OTHERWISE, ENDED, "ends now"),
        (ENDED, ENDED, "ends"),
        (ENDED, OTHERWISE, "worse"),
    ],
)
def test_a_word_for_each(bare: str | None, patched: str | None, word: str) -> None:
    assert table.word(result(bare), result(patched)) == word


def test_every_cell_has_a_name_of_its_own() -> None:
    cells = [
        table.cell_of(row, engine) for row in table.ROWS for engine in table.ONLY.get(row, table.ENGINES)
    ]
    assert len({cell.id for cell in cells}) == len(cells)


def test_nothing_on_record_is_harmed() -> None:
    found = table.GRID.read()
    assert found
    for (_, row), words in found.items():
        assert words.keys() <= set(table.ONLY.get(row, table.ENGINES))
        assert set(words.values()) <= set(grid.WORDS) - set(grid.HARM)
