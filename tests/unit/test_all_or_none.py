"""Ranks that come to a place together, or do not: decided once, and the same for each."""

from __future__ import annotations

import importlib
import sys
import threading
import types
from typing import Any

import pytest

shared: Any = importlib.import_module("vlmpatch.patches._shared.all_or_none")
RANKS = 3


class Store:
    """The parts of torch's stores that are asked for."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.lock = threading.Lock()

    def add(self, key: str, more: int) -> int:
        with self.lock:
            self.held[key] = str(int(self.held.get(key, "0")) + more)
            return int(self.held[key])

    def check(self, keys: list[str]) -> bool:
        return all(key in self.held for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        with self.lock:
            if self.held.get(key, "") == expected:
                self.held[key] = desired
            return self.held[key].encode()

    def delete_key(self, key: str) -> bool:
        with self.lock:
            return self.held.pop(key, None) is not None


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store, distributed = Store(), types.ModuleType("torch.distributed")
    distributed.get_world_size = lambda group: RANKS  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.setattr(shared, "job_store", lambda: store)
    monkeypatch.setattr(shared, "group_name", str)
    monkeypatch.setattr(shared, "WAIT", 0.2)
    return store


def came(places: list[Any]) -> list[bool]:
    """What each of ``places`` hears where its ranks come at the same time."""
    heard: dict[int, bool] = {}

    def come(number: int) -> None:
        heard[number] = places[number].come()

    threads = [threading.Thread(target=come, args=(number,)) for number in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [heard[number] for number in range(len(places))]


def places() -> list[Any]:
    return [shared.AllOrNone("patch", "group") for _ in range(RANKS)]


def test_all_come_and_hear_so_each_time(store: Store) -> None:
    every = places()
    for _ in range(3):
        assert came(every) == [True] * RANKS
    assert len(store.held) == 2  # what the times before left is gone


def test_where_one_does_not_come_nobody_goes_on_and_nobody_asks_again(store: Store) -> None:
    every = places()
    assert came(every) == [True] * RANKS
    assert came(every[1:]) == [False] * (RANKS - 1)
    before = dict(store.held)
    assert came(every[1:]) == [False] * (RANKS - 1)
    assert store.held == before


def test_one_that_comes_too_late_hears_what_the_others_heard(store: Store) -> None:
    every = places()
    assert came(every[1:]) == [False] * (RANKS - 1)
    assert not every[0].come()
    assert every[0].alone


def test_groups_and_names_do_not_hear_each_other(store: Store) -> None:
    others = [shared.AllOrNone("patch", "another"), shared.AllOrNone("another", "group")]
    assert came([shared.AllOrNone("patch", "group"), *others]) == [False] * RANKS
