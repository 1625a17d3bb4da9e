"""``verify`` without its trainings: what it chooses to run, and what it says of what came back."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import World
from tests.lab.waits import communicated
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch.gate import versions
from vlmpatch.tools import cases
from vlmpatch.tools.cases import Case
from vlmpatch.tools.run import INJECT
from vlmpatch.tools.verify import choice, elsewhere, ending, room, running, table
from vlmpatch.tools.verify.ending import Ending, Verdict
from vlmpatch.tools.verify.signals import Signals
from vlmpatch.tools.verify.table import Outcome
from vlmpatch.tools.verify.verify import verify
from vlmpatch.tools.view.language import Words
from vlmpatch_lab.cell import Cell

CHECKOUT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = Words("en"), Words("zh")


def case(patch: str, **fields: Any) -> Case:
    plain = {"id": "a-case", "cell": Cell(engine="none", tuning="full"), "fails": "error: x"}
    return Case(**{**plain, "patch": patch, "en": "a run", "zh": "一次运行", **fields})


def test_every_case_that_needs_no_framework_is_suitable() -> None:
    known = cases.read(read(default_path())).known.values()
    found = [case for case in known if choice.is_suitable(case)]
    assert {"gradient-checkpointing-default", "zero3-recompute-release"} <= {case.patch for case in found}
    assert all(case.cell.kind in choice.KINDS and not case.cell.trainer for case in found)


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
    chosen, without = choice.choose(entries, known, suitable, thorough=False, device="cpu")
    assert [each.id for each in chosen] == ["fails"]
    assert {(entry.id, why) for entry, why in without} == {(other, "not needed"), (alone, "no run")}
    every, _ = choice.choose(entries, known, suitable, thorough=True, device="cpu")
    assert [each.id for each in every] == ["fails", "spared"]


def test_what_would_hide_a_bug_is_off_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sides: dict[str, tuple[list[str], tuple[str, ...]]] = {}

    def run(self: Any, side: str, cells: list[Cell], without: Any = ()) -> dict[str, Any]:
        sides[side] = [cell.engine for cell in cells], tuple(without)
        return {}

    monkeypatch.setattr(running.Side, "run", run)
    hidden = case("one", cell=Cell(engine="zero2"), without=("other",))
    verdicts = running.try_cases([hidden, case("two"), case("three")], "cpu", ENGLISH)
    assert [verdict.case.patch for verdict in verdicts] == ["one", "two", "three"]
    assert sides.pop("bare")[1] == ()
    assert sides == {"patched0": (["zero2"], ("other",)), "patched1": (["none"], ())}


def test_what_is_not_installed_is_not_run(world: World) -> None:
    patch = world.patch("target", "{ fakelib = '>=1' }")
    world.distribution("fakelib", "1.5")
    known = world.catalog()
    suitable = [case(patch, cell=Cell(engine="zero3"))]
    _, without = choice.choose(list(known.entries.values()), known, suitable, thorough=False, device="cpu")
    assert [why for _, why in without] == ["no run"]


def test_cells_are_held_against_one_process() -> None:
    made = choice.prepared(Cell(engine="zero2", steps=3), "cpu")
    assert made.reference.engine == "plain"
    assert made.reference.ranks == 1
    assert made.dtype == "float32"
    on_gpus = choice.prepared(Cell(engine="ddp"), "cuda")
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
    found = ending.judge(report(cell, tmp_path, **fields), cell, 1e-5)
    assert found.outcome == outcome
    assert found.applied == {"one"}
    assert table.said(found, ENGLISH)
    assert table.said(found, CHINESE)


def test_a_run_that_never_came_back_is_said() -> None:
    found = ending.judge({"": {"error": "ImportError: no such thing"}}, Cell(), 1e-5)
    assert found.outcome == "none"
    assert "no such thing" in table.said(found, ENGLISH)


def test_a_choice_of_the_users_is_overruled_with_a_warning() -> None:
    warned = case("a-patch", warns="you said so")
    failed, right = Ending("error", "RuntimeError"), Ending("right", "0e+00")
    assert Verdict(warned, failed, right._replace(log="vlmpatch: you said so, and")).sound
    assert not Verdict(warned, failed, right).sound
    assert not Verdict(warned, failed, failed._replace(log="vlmpatch: you said so, and")).sound
    assert not Verdict(case("a-patch"), failed, failed).sound


def test_what_the_machine_itself_cannot_run_is_no_verdict() -> None:
    gloo = Ending("error", "RuntimeError: no support for _allgather_base")
    verdict = Verdict(case("a-patch", fails="error: AssertionError"), gloo, gloo)
    assert not verdict.tried
    text = " ".join(table.page(Outcome("cpu", 1.0, [verdict], [], 0), ENGLISH).text().split())
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
    cost = {"seconds": 0.01, "calls": 7, "elements": 9, "total": 6}
    good = Verdict(case("b-patch"), Ending("right", "0e+00", cost), Ending("right", "0e+00", cost))
    outcome = Outcome("cpu", 12.0, [bad, good], [], 0)
    english = " ".join(table.page(outcome, ENGLISH).text().split())
    assert "NO" in english
    assert "1 of 2 runs" in english
    assert "nothing to fix showed" in english
    assert "with: in a step ZeRO-3 gathers 1.5 times the model's parameters, by 7 call(s)" in english
    assert "2 次运行中 1 次" in table.page(outcome, CHINESE).text()


def test_a_run_is_bare_and_writes_to_its_folder_alone(tmp_path: Path) -> None:
    given = {"PYTHONPATH": INJECT, "RANK": "3", "HOME": "/home/me"}
    made = running.environment(given, tmp_path, "cpu")
    assert INJECT not in made["PYTHONPATH"]
    assert "RANK" not in made
    assert made["DS_ACCELERATOR"] == "cpu"
    assert all(made[name].startswith(str(tmp_path)) for name in ("TMPDIR", "HF_HOME", "TRITON_CACHE_DIR"))


def test_a_name_that_is_no_patch_and_a_python_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    known = read(default_path())
    assert verify(known, ENGLISH, ["nosuch"]) == 2
    assert verify(known, ENGLISH) == 1
    said = capsys.readouterr().out
    assert "nosuch is no patch id" in said
    assert "no torch in" in said


def test_a_log_that_will_be_gone_is_quoted_and_not_named() -> None:
    report = {"error": "ended with exit code -6; see rank1.log"}
    logs = ["all is well\n", "terminate called\n  what(): it broke\n\n"]
    assert ending.said_itself(report, logs) == "ended with exit code -6:   what(): it broke"
    assert ending.said_itself(report, ["", ""]) == "ended with exit code -6"
    assert ending.said_itself({"error": "OSError: no"}, logs) == "OSError: no"
    assert ending.said_itself({"error": None}, logs) is None
    said = table.said(Ending("error", "ended with exit code -6: what()"), ENGLISH)
    assert said == "ends with exit code -6: what()"


def test_every_patch_has_a_run_or_says_where_its_proof_is() -> None:
    known = read(default_path())
    found = cases.read(known).known.values()
    tiny = {case.patch for case in found if choice.is_suitable(dataclasses.replace(case, only={}))}
    proofs = [elsewhere.of(entry, found, {}) for entry in known.entries.values() if entry.id not in tiny]
    assert [proof.id for proof in proofs if not proof.cases or not (proof.stacks or proof.record)] == []
    text = table.page(Outcome("cpu", 1.0, [], proofs, 0), ENGLISH).text()
    assert "zero3-called-whole: called-before-the-engine on tf457-ds0182" in text


def disk(monkeypatch: pytest.MonkeyPatch, **free: int) -> None:
    """A machine whose folders have so many bytes left; the others have plenty."""

    def usage(place: str | Path) -> Any:
        return SimpleNamespace(free=free.get(Path(place).name, 1 << 40))

    monkeypatch.setattr(shutil, "disk_usage", usage)


def test_a_full_disk_is_said_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
    here = {"torch": "2.13.0", "deepspeed": "0.18.2"}
    monkeypatch.setattr(versions, "running", lambda name, module: here[name])
    monkeypatch.setattr(versions, "installed", lambda name, module: versions.Installed("9.9", "here"))
    monkeypatch.setattr(running, "launched", lambda *arguments: pytest.fail("it was started"))
    disk(monkeypatch, full=5 << 20)
    assert verify(read(default_path()), ENGLISH, ["zero3-recompute-release"], "cpu") == 3
    said = capsys.readouterr()
    assert re.search(r"/full is full: 5 MiB are left, and these runs write about \d+ MiB", said.err)
    assert said.out == ""


def test_no_folder_for_temporary_files_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def gettempdir() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", gettempdir)
    monkeypatch.setenv("TMPDIR", "/nowhere")
    with pytest.raises(room.NoRoom) as found:
        room.require(1)
    assert (found.value.place, found.value.free) == ("/nowhere", 0)


def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> dict[str, Any]:
    """What comes of one side whose process is ``source``."""
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setattr(running.Side, "_command", lambda *arguments: [sys.executable, "-c", source])
    with Signals() as signals:
        return running.Side(folder, 1, running.Progress(1, ENGLISH), signals).run("bare", [Cell()])


REPORT = """
import json
print(json.dumps({"id": "a", "error": "X", "ranks": []}), flush=True)
"""


@pytest.mark.parametrize(
    ("error", "place"),
    [
        ("OSError: [Errno 28] No space left on device", "full-disk"),
        ("OSError: [Errno 122] Disk quota exceeded: '/x'", "full-disk"),
        ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", "full-disk"),
        ("creating shared memory segment /dev/shm/nccl-a, error: No space left on device (28)", "shm"),
    ],
)
def test_runs_that_ran_out_of_room_are_no_verdict(
    error: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full-disk").mkdir()
    with pytest.raises(room.NoRoom) as found:
        ran(tmp_path / "full-disk", monkeypatch, REPORT.replace("X", error))
    assert Path(found.value.place).name == place


def test_a_process_that_a_full_disk_left_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk(monkeypatch, runs=4096)
    with pytest.raises(room.NoRoom):
        ran(tmp_path, monkeypatch, "")


def test_what_a_process_that_reported_nothing_said_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import sys; sys.exit('one\\nImportError: no such thing')"
    assert ran(tmp_path, monkeypatch, source) == {"": {"error": "ImportError: no such thing"}}


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_leaves_no_folder_and_no_process(how: str, tmp_path: Path) -> None:
    """A second signal comes while the first is obeyed."""
    program = Path(__file__).with_name("verify_program.py")
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert [path.name[:15] for path in tmp_path.iterdir()] == ["vlmpatch-verify"]
    for _ in range(2):
        process.send_signal(getattr(signal, how))
    communicated(process)
    assert process.returncode == (130 if how == "SIGINT" else 128 + getattr(signal, how))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_signal_that_comes_while_a_thing_is_made_waits_for_it() -> None:
    made: list[str] = []

    def make() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        made.append("thing")
        return "thing"

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, Signals() as signals, signals.owned(make, made.remove):
        pytest.fail("the block was entered")
    assert (ended.value.code, made) == (128 + signal.SIGTERM, [])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_interrupts_no_read_is_obeyed(tmp_path: Path) -> None:
    """As one that comes between Python's last look for signals and the system call that blocks."""
    silent = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with Signals() as signals, open(tmp_path / "log", "w") as log:
        process = running.launched(silent, tmp_path, os.environ, log)
        noted = threading.Timer(0.1, signals._note, (signal.SIGTERM, None))
        noted.start()
        with (
            pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)),
            signals.owned(lambda: process, running.ended),
        ):
            list(running.spoken(process, signals))
    assert process.returncode == -signal.SIGKILL


def test_what_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
