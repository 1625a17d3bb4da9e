"""Rendezvous of simulated ranks over one store: who is waited for, who is not, and what a look costs."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from patches._shared import rendezvous
from patches._shared.distributed import there
from patches._shared.rendezvous import Alone
from tests.lab.waits import LONG, joined
from vlmpatch.api import Patch
from vlmpatch.journal.journal import Journal
from vlmpatch_lab.patience import within

here = threading.local()


class Store:
    """What ``torch.distributed.Store`` does, in one process; counts requests by rank."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.requests: dict[int, int] = {}
        self._lock = threading.Lock()
        self._then: dict[str, Callable[[], None]] = {}

    def _asked(self) -> None:
        self.requests[here.rank] = self.requests.get(here.rank, 0) + 1

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self._asked()
            self.values[key] = value.encode()
        if key in self._then:
            self._then[key]()

    def when(self, key: str, then: Callable[[], None]) -> None:
        """Call ``then`` when ``key`` is set."""
        self._then[key] = then

    def get(self, key: str) -> bytes:
        with self._lock:
            self._asked()
            return self.values[key]

    def check(self, keys: list[str]) -> bool:
        with self._lock:
            self._asked()
            return all(key in self.values for key in keys)

    def add(self, key: str, number: int) -> int:
        with self._lock:
            self._asked()
            value = int(self.values.get(key, b"0")) + number
            self.values[key] = str(value).encode()
            return value


class World:
    """So many ranks, each a thread."""

    def __init__(self, size: int) -> None:
        self.size, self.store = size, Store()
        self.group = SimpleNamespace(WORLD=self)
        self.raised: dict[int, str] = {}

    def get_rank(self, group: Any = None) -> int:
        return int(here.rank)

    def get_world_size(self, group: Any = None) -> int:
        return self.size if group is None else int(group)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def start(self, rank: int, *what: str, parameters: Any = (), patch: Patch | None = None) -> Any:
        def run() -> None:
            here.rank = rank
            try:
                rendezvous.rendezvous(patch or Patch("late", Journal()), parameters, *what)
            except Alone as alone:
                self.raised[rank] = str(alone)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[World] = []

    def of(size: int) -> World:
        made.append(World(size))
        monkeypatch.setitem(sys.modules, "torch.distributed", made[-1])
        monkeypatch.setattr(rendezvous, "_store", lambda: made[-1].store)
        monkeypatch.setattr(rendezvous, "collectives", dict)
        return made[-1]

    # Every thread is a rank of its own: what a process counts for itself, they would count together.
    monkeypatch.setattr(rendezvous, "_held", _Once())
    monkeypatch.setattr(rendezvous, "_patches", {})
    yield of
    rendezvous._waiting.clear()


class _Once(dict[str, int]):
    """Each rank comes to one meeting of a name."""

    def __missing__(self, key: str) -> int:
        return 1

    def __setitem__(self, key: str, value: int) -> None:
        """Not counted."""


def test_a_look_costs_a_rank_the_same_however_many_there_are(world: Any, monkeypatch: Any) -> None:
    """Each rank looks three times while the others come, then once more when all are there.

    It rests in between: a thousand threads of one interpreter that look twice a second leave none of its
    time to the thread that starts the rest.
    """
    job, looks, everyone = world(1000), Counter[int](), threading.Event()

    def sleep(seconds: float) -> None:
        looks[here.rank] += 1
        if looks[here.rank] == 3:
            everyone.wait()

    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    job.store.when("vlmpatch/meet/save/1/all", everyone.set)
    assert joined([job.start(rank, "save") for rank in range(1000)])
    assert job.raised == {}
    beside = sorted(asked - 5 * looks[rank] for rank, asked in job.store.requests.items())
    assert beside[len(beside) // 2] < 10, "of most ranks: to come and to go, beside five a look"


def test_a_rank_that_comes_late_finds_that_nobody_was_ended(world: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(rendezvous, "WAIT", 0.2)
    job = world(2)
    assert joined([job.start(0, "save")])
    assert joined([job.start(1, "save")])
    assert job.raised == {}


def test_ranks_that_do_not_do_the_same_are_told(world: Any) -> None:
    job = world(2)
    assert joined([job.start(0, "load", "a"), job.start(1, "load", "b")])
    assert set(job.raised) == {0, 1}
    assert all("a on rank 0; b on rank 1" in words for words in job.raised.values())


def test_a_rank_that_has_ended_will_not_come(world: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(rendezvous, "LOOK", float("inf"))  # nobody looks around before both are there
    job = world(3)
    here.rank = 2
    job.store.set(f"{rendezvous.ENDED}/2", "-")
    arrivals = [threading.Event() for _ in range(2)]
    for rank, came in enumerate(arrivals):
        job.store.when(f"vlmpatch/meet/save/1/{rank}", came.set)
    ranks = [job.start(rank, "save", "", "Do this.") for rank in (0, 1)]
    assert all(within(LONG, came.wait) for came in arrivals)
    monkeypatch.setattr(rendezvous, "LOOK", 0.01)
    assert joined(ranks)
    assert set(job.raised) == {0, 1}
    assert all("not on rank 2" in words and "Do this." in words for words in job.raised.values())


def test_parameters_of_a_part_of_the_ranks_need_no_other_rank(world: Any) -> None:
    job = world(4)
    assert joined([job.start(0, "save", parameters=[SimpleNamespace(ds_process_group=2)])])
    assert job.raised == {}
    assert job.store.values == {}


def test_a_rank_that_was_switched_off_ends_the_waiting(world: Any) -> None:
    job = world(2)
    patch = Patch("late", Journal())
    patch.active = False
    patch.active = True
    waiting = job.start(0, "save")
    here.rank = 1
    job.store.set(rendezvous.OFF, "-")  # as the thread of rank 1 says it
    assert joined([waiting, job.start(1, "save", patch=patch)])
    assert job.raised == {}


def answers(number: int = rendezvous.STILL, **changed: Any) -> list[str]:
    """What a rank says that has waited in one collective of the whole job, number 8 of it, all the time."""
    same = {"at": [1, 2], "place": "is at train.py:1", "waiting": [], "blocked": "0", "collectives": {"0": 8}}
    return [json.dumps({"asked": asked, **same, **changed}) for asked in range(number)]


HOST = {"0": 7, "1": 3}  # has not started that collective
NEVER = answers()
LATE = {
    "sleeps, having started more": answers(blocked=None, collectives={"0": 9, "1": 9}),
    "waits in a group of some": answers(blocked="5", collectives={"0": 9, "5": 2}),
    "waits in what the host has started": answers(collectives={"0": 7}),
    "waits in what the host has started, ahead elsewhere": answers(collectives={"0": 7, "1": 9}),
    "has waited for less": answers(rendezvous.STILL - 1),
    "its process is stopped": answers(asked=4),
    "has moved": [*answers()[:-1], *answers(1, asked=99, at=[1, 3])],
    "has just come back to it": [*answers(1, blocked=None), *answers()[1:]],
    "says nothing": [],
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_a_rank_that_may_come_is_waited_for(late: list[str]) -> None:
    assert not rendezvous._never_over([late], HOST, threads=False)
    assert not rendezvous._never_over([NEVER, late], HOST, threads=False)


def test_what_is_certain_ends_it() -> None:
    ended, elsewhere = [rendezvous.HAS_ENDED], answers(blocked=None, waiting=["load/1"])
    late = LATE["says nothing"]
    for absent in ([NEVER], [NEVER, NEVER], [ended], [ended, late], [elsewhere], [elsewhere, late]):
        assert rendezvous._never_over(absent, HOST, threads=False), absent


def test_other_threads_may_bring_what_a_rank_waits_for() -> None:
    elsewhere = answers(blocked=None, waiting=["load/1"])
    assert not rendezvous._never_over([NEVER, elsewhere], HOST, threads=True)
    assert rendezvous._never_over([[rendezvous.HAS_ENDED]], HOST, threads=True)


def all_reduce(tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    return sys._getframe()


def send(tensor: Any, dst: int, group: Any = None) -> Any:
    return sys._getframe()


def test_only_a_collective_that_is_waited_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_name", lambda group: f"group {group}")

    def of(module: str, function: Any) -> Any:
        return FunctionType(function.__code__, {"__name__": module, "sys": sys}, None, function.__defaults__)

    blocked, torchs = rendezvous.blocked_in, rendezvous.COLLECTIVES
    assert blocked(of(torchs, all_reduce)(0, 3)) == "group 3"
    assert blocked(of(torchs, all_reduce)(0, 3, async_op=True)) is None
    assert blocked(of(torchs, send)(0, 1)) is None
    assert blocked(of("train", all_reduce)(0, 3)) is None
    assert blocked(None) is None


def test_a_process_group_made_anew_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks may be fresh processes, which have come to none."""
    here.rank = 0
    monkeypatch.setattr(rendezvous, "_held", Counter(save=3))
    monkeypatch.setattr(rendezvous, "_counted_in", [])
    monkeypatch.setattr(rendezvous, "WAIT", 0.0)
    stores = []
    for _ in range(2):
        monkeypatch.setitem(sys.modules, "torch.distributed", job := World(2))
        monkeypatch.setattr(rendezvous, "_store", lambda: job.store)
        monkeypatch.setattr(rendezvous, "collectives", dict)
        for _ in range(2):
            rendezvous.rendezvous(Patch("late", Journal()), (), "save")
        stores.append(sorted(key for key in job.store.values if key.endswith("/come")))
    assert stores == [[f"vlmpatch/meet/save/{number}/come" for number in (1, 2)]] * 2


def test_the_end_of_a_forked_child_is_not_that_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    here.rank = 0
    monkeypatch.setitem(sys.modules, "torch.distributed", job := World(2))
    monkeypatch.setattr(rendezvous, "_store", lambda: job.store)
    thread = threading.Thread(target=int)
    thread.start()
    rendezvous._leave(threading.Event(), thread, os.getppid())
    assert job.store.values == {}
    rendezvous._leave(threading.Event(), thread, os.getpid())
    assert list(job.store.values) == [f"{rendezvous.ENDED}/0"]


def test_which_threads_may_start_a_collective() -> None:
    stop = threading.Event()
    waiting = threading.Thread(target=stop.wait)  # in the standard library alone, as a progress bar's is
    waiting.start()
    working = threading.Thread(target=lambda: stop.wait())
    try:
        assert not rendezvous._others_at_work()
        working.start()
        assert rendezvous._others_at_work()
    finally:
        stop.set()
    assert joined([waiting, working])
    assert not rendezvous._others_at_work()


def test_a_store_that_cannot_be_asked_is_compared() -> None:
    here.rank, store = 0, Store()
    before_2_3 = SimpleNamespace(
        compare_set=lambda key, expected, wanted: store.values.get(key, expected.encode())
    )
    for each in (store, before_2_3):
        assert not there(each, "come")
    store.set("come", "-")
    for each in (store, before_2_3):
        assert there(each, "come")
