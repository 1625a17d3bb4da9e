"""A limit is of a quiet machine: the busier it is, the longer the wait, and it always ends."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab import busy, waits
from vlmpatch_lab import patience
from vlmpatch_lab.patience import Patience, within


class Machine:
    """A clock, and how many processes want to run meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wanting: int, nice: int = 0) -> None:
        self.now, self.wanting = 0.0, wanting
        monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(patience, "os", SimpleNamespace(cpu_count=lambda: 2, nice=lambda more: nice))
        monkeypatch.setattr(patience, "wanting", lambda: self.wanting)

    def waits(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.mark.parametrize(("wanting", "took"), [(0, 60), (1, 60), (2, 60), (8, 240), (45, 1350)])
def test_a_limit_grows_with_the_load(wanting: int, took: float, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, wanting)
    assert not within(60, machine.waits)
    assert machine.now == pytest.approx(took, abs=20)


@pytest.mark.parametrize(("wanting", "took"), [(2, 60), (8, 732), (20, 1831)])
def test_a_nice_process_waits_for_longer_where_cores_are_short(
    wanting: int, took: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, wanting, nice=5)
    assert not within(60, machine.waits)
    assert machine.now == pytest.approx(took, abs=2)


def test_load_counts_for_as_long_as_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, wanting=20)

    def done(seconds: float) -> bool:
        machine.wanting = 20 if machine.now < 100 else 1
        return machine.waits(seconds)

    assert not within(60, done)
    assert machine.now == pytest.approx(150, abs=2)  # a hundred that counted ten, and fifty


def test_looking_often_costs_no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, looks = Machine(monkeypatch, wanting=1), 0
    hasty = Patience(1)
    while not hasty.over():
        machine.now += 0.001
        looks += 1
    assert looks == pytest.approx(1000, rel=0.15)


@pytest.mark.parametrize(("wanting", "average", "seconds"), [(0, 0.5, 60), (8, 0.5, 240), (1, 20.0, 600)])
def test_a_number_of_seconds_for_others(
    wanting: int, average: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, wanting)
    monkeypatch.setattr(patience, "os", SimpleNamespace(cpu_count=lambda: 2, getloadavg=lambda: (average,)))
    assert patience.stretched(60) == seconds


@given(st.integers(-1, 10_000))
def test_a_share_is_never_more_than_a_core(runnable: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patience, "wanting", lambda: runnable)
        assert 0 < patience.share() <= 1


@pytest.mark.parametrize("text", ["", "0.1 0.2", "0.1 0.2 0.3 many/9 1"])
def test_a_machine_that_does_not_say_what_it_does(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loadavg").write_text(text)
    monkeypatch.setattr(patience, "LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(patience, "os", SimpleNamespace(getloadavg=lambda: (7.6, 0.0, 0.0)))
    assert patience.wanting() == 8


def test_those_that_want_to_run_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loadavg").write_text("3.94 3.75 2.71 9/96 19023\n")
    monkeypatch.setattr(patience, "LOAD", tmp_path / "loadavg")
    assert patience.wanting() == 8


def test_what_is_done_in_time() -> None:
    event = threading.Event()
    event.set()
    assert within(0.0, event.wait)
    thread = threading.Thread(target=event.wait)
    thread.start()
    assert waits.joined([thread])


def test_a_thread_and_a_process_that_hang() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    assert not waits.joined([thread], limit=0.1)
    event.set()
    thread.join()
    with pytest.raises(TimeoutError, match="ran past its limit"):
        waits.completed([sys.executable, "-c", "import time; time.sleep(3600)"], limit=0.1)


def test_a_command_beside_busy_processes(capfd: pytest.CaptureFixture[str]) -> None:
    program = (
        "import os, pathlib, sys\n"
        "parent = lambda stat: stat.read_text().rpartition(')')[2].split()[1]\n"
        "mine = str(os.getppid())\n"
        "beside = [p for p in pathlib.Path('/proc').glob('[0-9]*/stat') if parent(p) == mine]\n"
        "print(len(beside)); sys.exit(3)"
    )
    command = [sys.executable, "-m", "tests.lab.busy", "2", sys.executable, "-c", program]
    done = waits.completed(command, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout) == (3, "3\n"), done.stderr


@pytest.mark.parametrize("words", [[], ["8"], ["many", "true"]])
def test_busy_says_how_it_is_called(words: list[str]) -> None:
    assert busy.main(words) == 2
