"""What the table of axes says, and what it may not say; the runs themselves are in ``tests/e2e``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.axes import decisions, table
from tests.axes.rows import ENGINES, GROUPS, ROWS, cell_of
from tests.lab import grid

CELLS = [cell_of(name, engine) for name, row in ROWS.items() for engine in row.engines]
FOUND = table.GRID.read()


def ended(difference: float = 0.0, parameters: float = 0.0, ok: bool = True) -> Any:
    return SimpleNamespace(ok=ok, missing=(), between_ranks=0.0, difference=difference, parameters=parameters)


@pytest.mark.parametrize(
    ("row", "engine", "result", "right"),
    [
        ("lora", "ddp", ended(1e-6), True),
        ("lora", "ddp", ended(1e-4), False),
        ("lora", "ddp", ended(parameters=0.01), False),
        ("bf16", "zero2", ended(0.1, 0.1), True),
        ("bf16", "zero2", ended(0.1, 0.9), False),
        ("bf16", "zero2", ended(0.9), False),
        ("autocast", "ddp", ended(0.1, 0.9), True),
        ("bf16", "zero2", ended(ok=False), False),
    ],
)
def test_what_is_right(row: str, engine: str, result: Any, right: bool) -> None:
    assert table.is_right(cell_of(row, engine), result) == right


def test_every_cell_has_a_name_of_its_own() -> None:
    assert len({cell.id for cell in CELLS}) == len(CELLS)
    assert {row.group for row in ROWS.values()} == set(GROUPS)


def test_what_is_right_runs_in_one_process() -> None:
    for cell in CELLS:
        assert cell.reference.ranks == 1
        assert (cell.reference.checkpointing, cell.reference.dtype) == ("off", "float32")


def test_every_part_of_a_row_is_there() -> None:
    """The parts need torch; that a row names one can be read."""
    folder = Path(table.__file__).parent
    parts = {"adapter": "adapters", "objective": "objectives", "memory": "memory"}
    parts |= {"between": "lifecycle", "data": "data"}
    for name, file in parts.items():
        text = (folder / f"{file}.py").read_text()
        for row in ROWS.values():
            assert f'"{getattr(row, name)}": ' in text, (name, row)


def test_nothing_on_file_is_harmed() -> None:
    words = {told[engine] for told in FOUND.values() for engine in ENGINES if engine in told}
    assert words
    assert words <= set(grid.WORDS) - set(grid.HARM)


def test_what_is_on_file_is_a_row() -> None:
    for (_, row), told in FOUND.items():
        assert told.keys() - {table.PATCHES} <= set(ROWS[row].engines)


def test_every_cell_that_is_not_right_is_spoken_for() -> None:
    said = {cell for decision in decisions.read() for cell in decision.cells}
    assert said == decisions.owed(FOUND, ENGINES)


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    copy = tmp_path / "copy.csv"
    table.GRID.save(table.GRID.read(), copy)
    assert copy.read_bytes() == table.STORE.read_bytes()


def test_rows_are_run_some_at_a_time() -> None:
    some = [*table.chunks(ROWS)]
    assert [name for names in some for name in names] == [*ROWS]
    assert max(map(len, some)) == table.AT_ONCE
