"""What the table of axes says, and what it may not say; the runs themselves are in ``tests/e2e``."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.axes import decisions, table
from tests.axes.rows import ENGINES, GROUPS, ROWS, cell_of
from tests.lab import envs, grid, pages
from vlmpatch_lab.cell import Cell

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
        ("fp16-scaler", "ddp", ended(0.1, 0.1), True),
        ("fp16-scaler", "ddp", ended(0.1, 0.9), False),
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
    owed = decisions.owed(FOUND).keys()
    said = [decision.cells & owed for decision in decisions.red()]
    assert all(said)
    assert set().union(*said) == owed
    assert sum(map(len, said)) == len(owed)


def test_every_cell_that_is_not_right_has_its_failure() -> None:
    known = {path.stem for path in (pages.ROOT / "failures").glob("F*.toml")}
    for decision in decisions.red():
        for text in (decision.en, decision.zh):
            numbers = re.findall(r"\[F(\d+)\]\(failures\.md#f\1\)", text)
            assert numbers, decision.rows
            assert {f"F{int(number):02d}" for number in numbers} <= known


def test_what_is_said_of_empty_cells_is_said_of_none_that_was_run() -> None:
    run = {(stack, row, engine) for (stack, row), told in FOUND.items() for engine in told}
    for decision in decisions.absent():
        assert not decision.cells & run, decision.rows


def test_an_empty_cell_that_has_no_reason_was_not_run_yet() -> None:
    cells = decisions.not_yet({})
    assert ("tf445-ds0154", "lora", "ddp") in cells
    assert ("tf445-ds0154", "join", "zero1") not in cells
    every = [(stack, row) for stack in decisions.STACKS for row in ROWS]
    found: grid.Found = {what: dict.fromkeys(ENGINES, "=") for what in every}
    assert "not run yet" not in decisions.shown_empty(found, "en")
    del found["tf445-ds0154", "lora"]["fsdp2"]
    assert decisions.shown_empty(found, "en").endswith("- `lora` (fsdp2; tf445-ds0154): not run yet.")


def test_a_decision_stands_behind_its_cells_and_their_words() -> None:
    decision = decisions.Decision(("freeze", "toggle"), ("ddp",), "it waits.", "等待。")
    words = {("b", "freeze", "ddp"): "ends", ("a", "toggle", "ddp"): "ends", ("a", "join", "ddp"): "wrong"}
    everywhere = dataclasses.replace(decision, stacks=("a", "b"))
    assert decisions.shown([everywhere], "en", words) == "- `freeze`, `toggle` (ddp; `ends`: a, b): it waits."
    assert decisions.shown([decision], "zh", {}) == "- `freeze`, `toggle` (ddp): 等待。"
    one = dataclasses.replace(decision, engines=ENGINES, stacks=("a",))
    assert decisions.shown([one], "en", {}) == "- `freeze`, `toggle` (a): it waits."


def test_a_row_that_was_run_in_part_keeps_the_digest_that_it_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table, "GRID", dataclasses.replace(table.GRID, path=tmp_path / "axes.csv"))
    monkeypatch.setattr(envs, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(table, "revision", lambda stack: "now")
    monkeypatch.setattr(
        table, "run", lambda stack, wanted, out: [(cell, ended(), ended()) for cell in wanted]
    )
    table.GRID.save({("stack", "bf16"): {"zero1": "=", table.PATCHES: "before"}})
    table.perform("stack", ["bf16"], ["zero2"])
    assert table.GRID.read() == {("stack", "bf16"): {"zero1": "=", "zero2": "=", table.PATCHES: "before"}}
    table.perform("stack", ["bf16"], ["zero1", "zero2", "zero3"])
    assert table.GRID.read()["stack", "bf16"][table.PATCHES] == "now"


def test_a_cell_that_is_said_to_be_empty_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(stack: str, wanted: list[Cell], out: Path) -> list[table.Ran]:
        assert wanted
        return [(cell, ended(), ended()) for cell in wanted]

    monkeypatch.setattr(table, "GRID", dataclasses.replace(table.GRID, path=tmp_path / "axes.csv"))
    monkeypatch.setattr(envs, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(table, "run", run)
    ran = [cell.engine for cell, _, _ in table.perform("tf457-ds0182", ["autotp"], ENGINES)]
    assert ran == ["zero1", "zero2"]
    assert table.perform("tf445-ds0154", ["autotp"], ENGINES) == []


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    copy = tmp_path / "copy.csv"
    table.GRID.save(table.GRID.read(), copy)
    assert copy.read_bytes() == table.STORE.read_bytes()


def test_rows_are_run_some_at_a_time() -> None:
    some = [*table.chunks(ROWS)]
    assert [name for names in some for name in names] == [*ROWS]
    assert max(map(len, some)) == table.AT_ONCE
