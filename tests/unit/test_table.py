"""What was measured survives its file, and a file that is not whole is never read as if it were."""

from __future__ import annotations

import dataclasses
import tempfile
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import zero3_gather, zero_step
from tests.e2e import mixed_long, mixed_table
from tests.lab import envs, families, grid, record, table
from tests.matrix import drift, judge, rows, store
from tests.matrix.judge import Outcome
from tests.matrix.store import Store

AWKWARD = st.text(st.sampled_from("a'\",\n\r\\n \t\0 ;|*中文梯度\u2028\x85\x1c")) | st.text()
ID = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
OUTCOMES = st.builds(
    Outcome,
    outcome=st.sampled_from(judge.KINDS),
    detail=AWKWARD,
    applied=ID | st.just(""),
    troubled=st.lists(ID).map(tuple),
    warned=AWKWARD,
    revision=ID | st.just(""),
    key=ID,
    date=st.dates().map(str),
    versions=st.dictionaries(ID, ID, min_size=1, max_size=2),
)
MEASURED = st.dictionaries(
    ID, st.dictionaries(st.sampled_from(store.SIDES), OUTCOMES, min_size=1), min_size=1
)
FOUND = Outcome("right", key="k", date="2026-01-01", versions={"torch": "2.13.0"})
HEAD = ",".join(store.COLUMNS)
GOOD = "r,bare,right" + "," * (len(store.COLUMNS) - 3)


@given(st.lists(st.tuples(AWKWARD, AWKWARD)))
def test_a_table_survives_its_file_one_line_a_row(lines: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "some.csv")
        table.write(path, ("a", "b"), lines)
        assert [(row["a"], row["b"]) for _, row in table.read(path, ("a", "b"), "again")] == lines
        assert path.read_bytes().count(b"\n") == len(lines) + 1
        assert b"\r" not in path.read_bytes()


@given(MEASURED)
@settings(max_examples=25)
def test_results_survive_their_file(measured: store.OfStack) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store.dump(Path(folder, "s.csv"), measured)
        assert store.load(Path(folder, "s.csv")) == measured


@given(MEASURED, OUTCOMES, st.data())
@settings(max_examples=25)
def test_one_row_run_again_changes_its_lines_alone(
    measured: store.OfStack, found: Outcome, data: st.DataObject
) -> None:
    row = data.draw(st.sampled_from(sorted(measured)))
    side = data.draw(st.sampled_from(sorted(measured[row])))
    same_pins = dataclasses.replace(found, versions=measured[row][side].versions)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.csv")
        store.dump(path, measured)
        before = path.read_text("utf-8").split("\n")
        store.dump(path, {**measured, row: {**measured[row], side: same_pins}})
        after = path.read_text("utf-8").split("\n")
    assert len(before) == len(after)
    assert sum(one != other for one, other in zip(before, after, strict=True)) <= 1


def test_a_stack_that_is_gone_takes_its_file_along(tmp_path: Path) -> None:
    results = Store(tmp_path)
    for stack in ("kept", "gone"):
        for row in ("r", "gone"):
            results.put(stack, row, "bare", FOUND)
    results.save(["kept"], ["r"])
    assert [path.name for path in tmp_path.iterdir()] == ["kept.csv"]
    assert Store(tmp_path).outcomes == {"kept": {"r": {"bare": FOUND}}}
    assert Store(tmp_path).get("kept", "r", "patched") is None


def fill(folder: Path, name: str, count: int) -> None:
    results = Store(folder)
    for number in range(count):
        results.put("s", f"{name}{number}", "bare", FOUND)
        results.save(["s"], [f"{name}{number}" for name in "ab" for number in range(count)])


def test_two_writers_lose_nothing_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLMPATCH_LAB", str(tmp_path / "lab"))
    count, start = 20, get_context("spawn").Process
    writers = [start(target=fill, args=(tmp_path / "results", name, count)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(Store(tmp_path / "results").outcomes["s"]) == 2 * count


BROKEN = {
    "": (1, "the header is not row,side"),
    "{}\n": (1, "the header is not row,side"),
    f"{HEAD},more\n": (1, "the header is not row,side"),
    f"{HEAD}\n{GOOD}\n{GOOD[:-5]}": (3, "cut off"),
    f"{HEAD}\n{GOOD[:-5]}\n": (2, "6 cells and not 11"),
    f"{HEAD}\n<<<<<<< HEAD\n{GOOD}\n": (2, "1 cells and not 11"),
    f"{HEAD}\n\n": (2, "0 cells and not 11"),
    f'{HEAD}\n{GOOD[:-1]}"no end\n': (2, "cells and not 11"),
    f"{HEAD}\n{GOOD}\n{GOOD}\n": (3, "the same row and side a second time"),
    f"{HEAD}\n{GOOD.replace('right', 'well')}\n": (2, "the outcome 'well' is none of right, error"),
    f"{HEAD}\n{GOOD.replace('bare', 'nude')}\n": (2, "the side 'nude' is none of bare, patched"),
}


@pytest.mark.parametrize("broken", BROKEN, ids=[what for _, what in BROKEN.values()])
def test_broken_results_say_where_and_what_to_do(broken: str, tmp_path: Path) -> None:
    path = tmp_path / "tf1.csv"
    path.write_text(broken)
    line, what = BROKEN[broken]
    with pytest.raises(table.Broken) as raised:
        Store(tmp_path)
    said = str(raised.value)
    assert said.startswith(f"{path}, line {line}: ")
    assert what in said
    assert said.endswith(
        f"Take the file back from git (git checkout -- {path}), or delete it and measure again: "
        "python -m tests.matrix.run tf1"
    )


def test_what_is_no_text_at_all(tmp_path: Path) -> None:
    (tmp_path / "tf1.csv").write_bytes(b"\xff\xfe\0")
    with pytest.raises(table.Broken, match="not UTF-8"):
        Store(tmp_path)


@given(st.data())
@settings(max_examples=25)
def test_a_file_cut_off_anywhere_is_refused_or_ends_with_a_line(data: st.DataObject) -> None:
    """What was cut off at the end of a line is missing, and ``render`` lists it as not measured."""
    whole = max(store.RESULTS.glob("*.csv")).read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tf1.csv")
        path.write_bytes(whole[:cut])
        if cut == 0 or whole[cut - 1 : cut] != b"\n":
            with pytest.raises(table.Broken):
                store.load(path)
        else:
            assert whole[:cut].count(b"\n") - 2 in (-1, sum(map(len, store.load(path).values())))


@pytest.mark.parametrize("line", ["p,t,ajar,,bug,,", "p,t,open,,perhaps,,"])
def test_shapes_no_probe_could_have_written(line: str, tmp_path: Path) -> None:
    path = tmp_path / "tf1.csv"
    path.write_text(f"{','.join(drift.COLUMNS)}\n{line}\n")
    with pytest.raises(table.Broken, match=r"line 2: .* are not a gate and a verdict.*drift --record tf1"):
        drift.read(path)


def test_a_shape_does_not_say_where_it_was_seen() -> None:
    for path in drift.SHAPES.iterdir():
        assert drift.placeless(drift.read(path)) == drift.read(path), path
        assert "site-packages" not in path.read_text("utf-8"), path
    reason = "Engine.step in /a/lib/site-packages/deepspeed/engine.py is new"
    look = {"says": "unrecognised", "reason": reason, "parts": {}}
    probe: drift.Probe = {"versions": {}, "patches": {"p": {"targets": {"deepspeed.engine": look}}}}
    drift.placeless(probe)
    assert look["reason"] == "Engine.step in deepspeed/engine.py is new"


def test_every_file_is_as_its_writer_would_write_it(tmp_path: Path) -> None:
    """Sorted, LF, nothing lost: a run of one row changes no other line."""
    copy = tmp_path / "copy.csv"
    for path in store.RESULTS.iterdir():
        store.dump(copy, store.load(path))
        assert copy.read_bytes() == path.read_bytes(), path
    for path in drift.SHAPES.iterdir():
        drift.write(copy, drift.read(path))
        assert copy.read_bytes() == path.read_bytes(), path
    families.save(families.read(), copy)
    assert copy.read_bytes() == families.STORE.read_bytes()
    mixed_table.GRID.save(mixed_table.GRID.read(), copy)
    assert copy.read_bytes() == mixed_table.STORE.read_bytes()
    mixed_long.save(mixed_long.read(), copy)
    assert copy.read_bytes() == mixed_long.STORE.read_bytes()
    for bench in (zero_step, zero3_gather):
        table.write_over(copy, bench.COLUMNS, bench.read(), [], "deepspeed")
        assert copy.read_bytes() == bench.STORE.read_bytes()
    record.save(record.known(), copy)
    assert copy.read_bytes() == record.STORE.read_bytes()


def test_results_are_of_rows_and_stacks_that_exist() -> None:
    outcomes = Store().outcomes
    assert outcomes.keys() <= envs.read_stacks().keys()
    assert {row for of_stack in outcomes.values() for row in of_stack} <= rows.read().keys()


def test_a_release_that_is_measured_again_replaces_its_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "bench.csv"
    known = [{"release": release, "calls": calls} for release, calls in (("1", "a"), ("3", "b"), ("3", "c"))]
    measured = [{"release": release, "calls": calls} for release, calls in (("3", "d"), ("2", "e"))]
    table.write_over(path, ("release", "calls"), known, measured, "release")
    assert path.read_text() == "release,calls\n1,a\n2,e\n3,d\n"


def test_a_row_of_mixed_batches_is_as_new_as_its_oldest_word() -> None:
    what = ("stack", "llava", "full", "alternating")
    found: grid.Found = {what: {"ddp": "=", "zero3": "differs", "patches": "old"}}
    mixed_table.merge(found, {what: {"zero3": "="}}, "new")
    assert found == {what: {"ddp": "=", "zero3": "=", "patches": "old"}}
    mixed_table.merge(found, {what: {"zero3": "=", "ddp": "="}}, "new")
    assert found[what]["patches"] == "new"
    another = ("stack", "llava", "full", "text")
    mixed_table.merge(found, {another: {"ddp": "="}}, "new")
    assert found[another] == {"ddp": "=", "patches": "new"}
