"""Nothing ends a process unless every rank of its group, in this run, stands still for ever."""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from typing import Any

import vlmpatch  # noqa: F401  (makes vlmpatch.patches importable in a checkout)

deadlock: Any = importlib.import_module("vlmpatch.patches._shared.deadlock")
STILL, LOOK = 60.0, 15.0


class Store:
    """A ``torch.distributed`` store in a dictionary, which counts what it is asked."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self.by = "nobody"

    def _count(self, keys: int = 1) -> None:
        self.asked[self.by] += keys

    def set(self, key: str, value: str) -> None:
        self._count()
        self.held[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._count()
        return self.held[key]

    def check(self, keys: list[str]) -> bool:
        self._count(len(keys))
        return all(key in self.held for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._count(len(keys))
        return [self.held[key] for key in keys]

    def add(self, key: str, amount: int) -> int:
        self._count()
        number = int(self.held.get(key, b"0")) + amount
        self.held[key] = str(number).encode()
        return number

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._count()
        if self.held.get(key, b"") == expected.encode():
            self.held[key] = desired.encode()
        return self.held.get(key, expected.encode())


class Group:
    """Ranks of one group in one process, and their clock."""

    def __init__(self, size: int, store: Any = None, prefix: str = "p", first: int = 0) -> None:
        self.store = store or Store()
        self.now = 1000.0
        ranks = range(first, first + size)
        self.monitors = [
            deadlock.RankMonitor(self.store, prefix, ranks, place, STILL, lambda told: f"PARTED {told}")
            for place in range(size)
        ]
        self.silent: set[int] = set()

    def gather(self, *ids: int, only: int | None = None) -> None:
        for place, monitor in enumerate(self.monitors):
            if only in (None, place):
                for id_ in ids:
                    monitor.note(id_, 8 * (id_ % 100))
                    monitor.names[id_] = f"layer{id_}"

    def look(self) -> list[tuple[str, str]]:
        self.now += LOOK
        done = []
        for place, monitor in enumerate(self.monitors):
            if place not in self.silent:
                self.store.by = str(place)
                done.append(monitor.look(self.now))
        return done

    def kinds(self, minutes: float) -> list[str]:
        """Everything that is to be done in so many minutes."""
        looks = [self.look() for _ in range(int(minutes * 60 / LOOK))]
        return [kind for look in looks for kind, _ in look if kind]


def parted(size: int = 2, **more: Any) -> Group:
    group = Group(size, **more)
    group.gather(1, 2, 3)
    group.gather(4, only=0)
    for place in range(1, size):
        group.gather(5, only=place)
    return group


def test_ranks_in_different_gathers_end_all_together() -> None:
    group = parted()
    looks = [group.look() for _ in range(20)]
    first = next(number for number, look in enumerate(looks) if any(kind == "end" for kind, _ in look))
    assert first * LOOK >= STILL + 8 * LOOK  # still, seen twice, asked, asked again, told, and told for long
    assert first * LOOK <= 5 * STILL
    words = {words for look in looks for kind, words in look if kind == "end"}
    assert len(words) == 1
    (told,) = words
    assert "Gather 4 of this run is layer4 on rank 0, layer5 on rank 1" in told
    assert "layer4: 1 times on rank 0, 0 times on rank 1" in told


def test_ranks_are_called_what_the_world_calls_them() -> None:
    group = parted(3, first=4)
    told = next(words for _ in range(20) for kind, words in group.look() if kind == "end")
    assert "layer4 on rank 4, layer5 on ranks 5, 6" in told


def test_an_hour_in_one_place_is_nothing() -> None:
    """A checkpoint that takes long, an evaluation between steps, a slow network."""
    group = Group(4)
    group.gather(1, 2, 3)
    assert group.kinds(minutes=60) == []
    assert not any("report" in key or "word" in key for key in group.store.held)
    group.gather(4)
    assert group.kinds(minutes=5) == []


def test_one_rank_at_a_breakpoint_is_waited_for() -> None:
    group = Group(3)
    group.gather(1, 2)
    group.gather(3, 4, only=0)
    group.gather(3, 4, only=2)
    assert group.kinds(minutes=4) == []
    looks = [look for _ in range(200) for look in group.look() if look[0]]
    assert {kind for kind, _ in looks} == {"warn"}
    assert "rank 1 did not come to gather 3 (layer3)" in looks[0][1]
    group.gather(3, 4, 5, only=1)
    group.gather(5, only=0)
    group.gather(5, only=2)
    assert group.kinds(minutes=60) == []


def test_gathers_of_one_size_go_through() -> None:
    """Experts called in another order on each rank, and then a checkpoint of minutes."""
    group = Group(2)
    group.gather(1, 2)
    group.gather(103, 203, only=0)
    group.gather(203, 103, only=1)
    group.gather(4)
    said = {(kind, words) for _ in range(200) for kind, words in group.look() if kind}
    ((kind, words),) = said
    assert kind == "warn"
    assert words.startswith(deadlock.MIXED)
    assert "layer103 on rank 0, layer203 on rank 1" in words


def test_a_rank_without_the_patch_says_nothing_so_nothing_is_concluded() -> None:
    group = parted(3)
    group.silent = {1}
    assert group.kinds(minutes=60) == []


def test_a_rank_that_was_switched_off_for_a_while_vouches_for_nothing() -> None:
    group = parted()
    group.monitors[1].whole = False
    said = [words for _ in range(200) for kind, words in group.look() if kind]
    assert said
    assert all("as it seems" in words and "PARTED" not in words for words in said)


def test_ranks_that_have_gone_on_after_they_parted_are_not_deadlocked() -> None:
    group = parted()
    group.gather(*range(10, 10 + deadlock.AHEAD + 5))
    assert set(group.kinds(minutes=60)) == {"warn"}


def test_what_a_run_before_has_left_is_nobodys_beat() -> None:
    store = Store()
    old = parted(2, store=store)
    for _ in range(8):
        old.look()  # heartbeats, reports and a word are there
    assert any("report" in key for key in store.held)
    new = Group(2, store=store)
    new.gather(1)
    new.gather(2, only=0)
    new.silent = {1}  # has not stood still in this run
    assert new.kinds(minutes=60) == []
    new.silent = set()
    assert "end" not in new.kinds(minutes=60)


def looks_to_the_end(group: Group) -> int:
    return next(n for n in range(1, 40) if "end" in {kind for kind, _ in group.look()})


def test_a_rank_that_moves_after_it_was_asked_is_left_alone() -> None:
    """At whatever look; it takes one for the rank to say so, and one for the reader to take its word back."""
    for moment in range(1, looks_to_the_end(parted()) - 1):
        group = parted()
        for _ in range(moment):
            group.look()
        group.gather(6, only=1)
        kinds = {kind for _ in range(deadlock.SURE + 2) for kind, _ in group.look()}
        assert "end" not in kinds, moment


def test_another_reader_takes_over() -> None:
    group = parted(4)
    for _ in range(6):
        group.look()
    claimed = group.store.held["p/reader"].decode().split()[0]
    reader = next(place for place, monitor in enumerate(group.monitors) if monitor.nonce == claimed)
    silent, group.silent = group.silent, {reader}
    assert group.kinds(minutes=5) == []
    group.silent = silent
    assert group.kinds(minutes=5).count("end") >= 4


def test_groups_on_one_store_do_not_meet() -> None:
    """Two engines on parts of the world; expert, tensor and sequence parallel groups."""
    store = Store()
    sound, broken = Group(2, store, "a"), parted(2, store=store, prefix="b", first=2)
    sound.gather(1, 2, 3)
    kinds: list[str] = []
    for _ in range(40):
        kinds += [kind for kind, _ in sound.look()]
        broken.look()
    assert set(kinds) == {""}


def test_a_look_costs_every_rank_the_same() -> None:
    """A thousand ranks on one store."""
    size = 1000
    for group in (Group(size), parted(size)):
        group.gather(7)
        for _ in range(12):
            group.store.asked.clear()
            group.look()
            costs = sorted(group.store.asked.values())
            assert not costs or costs[-2] <= 8, costs[-5:]  # all but the reader
            assert sum(costs) <= 14 * size


def test_number_and_list_belong_together() -> None:
    monitor = Group(2).monitors[0]
    stop = threading.Event()

    def gathers() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            monitor.note(number, 8)  # the id is the number

    thread = threading.Thread(target=gathers)
    thread.start()
    try:
        for _ in range(300):
            report = monitor.report()
            ids = report["ids"]
            assert ids == list(range(report["from"] + 1, report["from"] + 1 + len(ids)))
    finally:
        stop.set()
        thread.join()
