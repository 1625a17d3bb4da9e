"""``verify`` without its trainings: what it chooses to run, and what it says of what came back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import World
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch.tools import cases, verify
from vlmpatch.tools.cases import Case
from vlmpatch.tools.run import INJECT
from vlmpatch.tools.verify import Ending, Verdict
from vlmpatch.tools.view.language import Words
from vlmpatch_lab.cell import Cell

ENGLISH, CHINESE = Words("en"), Words("zh")


def case(patch: str, **fields: Any) -> Case:
    plain = {"id": "a-case", "cell": Cell(engine="none", tuning="full"), "fails": "error: x"}
    return Case(**{**plain, "patch": patch, "en": "a run", "zh": "一次运行", **fields})


def test_every_case_that_needs_no_framework_is_suitable() -> None:
    known = cases.read(read(default_path())).known.values()
    found = [case for case in known if verify.is_suitable(case)]
    assert {"gradient-checkpointing-default", "zero3-recompute-release"} <= {case.patch for case in found}
    assert all(case.cell.kind in verify.KINDS and not case.cell.trainer for case in found)


def test_one_run_a_patch_and_the_one_that_is_known_to_fail_here(world: World) -> None:
    world.distribution("fakelib", "1.5")
    wanted = world.patch("target", '{ fakelib = ">=1" }')
    other = world.patch("target2", '{ fakelib = ">=2" }')
    alone = world.patch("target3", '{ fakelib = ">=1" }')
    known = world.catalog()
    suitable = [
        case(wanted, id="spared", where={"fakelib": ">=2"}),
        case(wanted, id="fails", where={"fakelib": "<2"}),
    ]
    entries = list(known.entries.values())
    chosen, without = verify.choose(entries, known, suitable, thorough=False, device="cpu")
    assert [each.id for each in chosen] == ["fails"]
    assert {(entry.id, why) for entry, why in without} == {(other, "not needed"), (alone, "no run")}
    every, _ = verify.choose(entries, known, suitable, thorough=True, device="cpu")
    assert [each.id for each in every] == ["fails", "spared"]


def test_what_would_hide_a_bug_is_off_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sides: dict[str, tuple[list[str], tuple[str, ...]]] = {}

    def run_side(
        folder: Path, side: str, cells: list[Cell], progress: Any, without: Any = ()
    ) -> dict[str, Any]:
        sides[side] = [cell.engine for cell in cells], tuple(without)
        return {}

    monkeypatch.setattr(verify, "run_side", run_side)
    hidden = case("one", cell=Cell(engine="zero2"), without=("other",))
    verdicts = verify.try_cases([hidden, case("two"), case("three")], "cpu", ENGLISH)
    assert [verdict.case.patch for verdict in verdicts] == ["one", "two", "three"]
    assert sides.pop("bare")[1] == ()
    assert sides == {"patched0": (["zero2"], ("other",)), "patched1": (["none"], ())}


def test_what_is_not_installed_is_not_run(world: World) -> None:
    patch = world.patch("target", "{ fakelib = '>=1' }")
    world.distribution("fakelib", "1.5")
    known = world.catalog()
    suitable = [case(patch, cell=Cell(engine="zero3"))]
    _, without = verify.choose(list(known.entries.values()), known, suitable, thorough=False, device="cpu")
    assert [why for _, why in without] == ["no run"]


def test_cells_are_held_against_one_process() -> None:
    made = verify.prepared(Cell(engine="zero2", steps=3), "cpu")
    assert made.reference.engine == "plain_zeros"
    assert made.reference.ranks == 1
    assert made.dtype == "float32"
    on_gpus = verify.prepared(Cell(engine="ddp"), "cuda")
    assert (on_gpus.dtype, on_gpus.device) == ("bfloat16", "cuda")
    assert (on_gpus.reference.dtype, on_gpus.reference.device) == ("float32", "cuda")


def report(cell: Cell, tmp_path: Path, **fields: Any) -> dict[str, Any]:
    compared = {"difference": 0.0, "between_ranks": 0.0, "missing": []}
    ranks = [{"patches": {"one": "applied", "two": "off"}, "cost": {"seconds": 0.01}}]
    plain = {"ok": True, "error": None, "ranks": ranks, "log": "", "gradients": compared}
    return {cell.id: {**plain, **fields}}


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, "right"),
        ({"ok": False, "error": "RuntimeError: it\n broke"}, "error"),
        ({"gradients": {"difference": 0.5, "between_ranks": 0.0, "missing": []}}, "difference"),
        ({"gradients": {"difference": float("nan"), "between_ranks": 0.0, "missing": []}}, "difference"),
        ({"gradients": {"difference": 0.5, "between_ranks": 0.2, "missing": ["w"]}}, "ranks"),
        ({"gradients": {"difference": 0.5, "between_ranks": 0.0, "missing": ["w"]}}, "missing"),
        ({"gradients": {"between_ranks": 0.0}}, "none"),
    ],
)
def test_outcomes(fields: dict[str, Any], outcome: str, tmp_path: Path) -> None:
    cell = Cell()
    found = verify.judge(report(cell, tmp_path, **fields), cell, 1e-5)
    assert found.outcome == outcome
    assert found.applied == {"one"}
    assert verify.said(found, ENGLISH)
    assert verify.said(found, CHINESE)


def test_a_run_that_never_came_back_is_said() -> None:
    found = verify.judge({"": {"error": "ImportError: no such thing"}}, Cell(), 1e-5)
    assert found.outcome == "none"
    assert "no such thing" in verify.said(found, ENGLISH)


def test_a_choice_of_the_users_is_sound_when_it_was_warned_of() -> None:
    warned = case("a-patch", warns="it stands")
    failed = Ending("error", "RuntimeError")
    assert Verdict(warned, failed, failed._replace(log="vlmpatch: it stands")).sound
    assert not Verdict(warned, failed, failed).sound
    assert not Verdict(case("a-patch"), failed, failed).sound


def test_what_the_machine_itself_cannot_run_is_no_verdict() -> None:
    gloo = Ending("error", "RuntimeError: no support for _allgather_base")
    verdict = Verdict(case("a-patch", fails="error: AssertionError"), gloo, gloo)
    assert not verdict.tried
    text = " ".join(verify.view([verdict], [], ENGLISH, "cpu", 1.0).text().split())
    assert "0 of 0 runs" in text
    assert "this machine cannot run it" in text
    aborted = Ending("error", "ended with exit code -6; see rank1.log")
    lacking = Ending("error", "RuntimeError: no support for _allgather_base in Gloo process group")
    assert not Verdict(case("a-patch", fails="error: ALLREDUCE"), aborted, lacking).tried
    assert Verdict(case("a-patch", fails="error: ALLREDUCE"), lacking, aborted).tried
    its_own = Ending("error", "AssertionError: twice")
    assert Verdict(case("a-patch", fails="error: AssertionError"), its_own, its_own).tried


def test_the_table_in_both_languages(world: World) -> None:
    bad = Verdict(case("a-patch"), Ending("error", "RuntimeError: x"), Ending("missing", "3"))
    cost = {"seconds": 0.01, "calls": 7, "elements": 9}
    good = Verdict(case("b-patch"), Ending("right", "0e+00", cost), Ending("right", "0e+00", cost))
    english = verify.view([bad, good], [], ENGLISH, "cpu", 12.0).text()
    assert "NO" in english
    assert "1 of 2 runs" in english
    assert "nothing to mend showed" in english
    assert "gathers a step: 7" in english
    assert "2 次运行中 1 次" in verify.view([bad, good], [], CHINESE, "cpu", 12.0).text()


def test_a_run_is_bare_and_writes_to_its_folder_alone(tmp_path: Path) -> None:
    given = {"PYTHONPATH": INJECT, "RANK": "3", "HOME": "/home/me"}
    made = verify.environment(given, tmp_path, "cpu")
    assert INJECT not in made["PYTHONPATH"]
    assert "RANK" not in made
    assert made["DS_ACCELERATOR"] == "cpu"
    assert all(made[name].startswith(str(tmp_path)) for name in ("TMPDIR", "HF_HOME", "TRITON_CACHE_DIR"))


def test_a_name_that_is_no_patch_and_a_python_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    known = read(default_path())
    assert verify.verify(known, ENGLISH, ["nosuch"]) == 2
    assert verify.verify(known, ENGLISH) == 1
    said = capsys.readouterr().out
    assert "nosuch is no patch id" in said
    assert "no torch in" in said
