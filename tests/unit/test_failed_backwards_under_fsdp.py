"""Whom a rank asks after a backward that failed under FSDP; real runs prove the rest (``tests/mishaps``)."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import pytest

words: Any = importlib.import_module("vlmpatch.patches._shared.failed_backward")


class Group:
    def __init__(self, name: str) -> None:
        self.name, self.begun = name, 0

    def _get_sequence_number_for_group(self) -> int:
        return self.begun


class Uncounted:
    def _get_sequence_number_for_group(self) -> int:
        raise RuntimeError("not implemented by this backend")


class Store(dict[str, str]):
    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(words, "job_store", lambda: made)
    monkeypatch.setattr(words, "group_name", lambda group: group.name)
    monkeypatch.setattr(words, "rank", lambda: 0)
    monkeypatch.setattr(words, "WAIT", 0.0)
    dist = types.SimpleNamespace(get_process_group_ranks=lambda _: [0, 1])
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    return made


def other_failed(store: Store, group: Group, number: int, collectives: int) -> None:
    store["/".join([words.run_prefix(), "failed", "id", group.name, str(number), "1"])] = str(collectives)


def test_a_group_is_asked_once_of_however_many_units(store: Store) -> None:
    shards, replicas = Group("0"), Group("1")
    words.begin([shards, replicas, shards])
    begun = words.begin([shards, replicas, shards])
    shards.begun, replicas.begun = 3, 1
    other_failed(store, shards, 2, 3)
    other_failed(store, replicas, 2, 1)
    words.ask_everywhere("id", begun)


@pytest.mark.parametrize("there", [0, 1])
def test_one_group_in_which_a_rank_waits_ends_it(there: int, store: Store) -> None:
    groups = [Group("0"), Group("1")]
    begun = words.begin(groups)
    other_failed(store, groups[there], 1, 0)
    with pytest.raises(RuntimeError, match=r"\[id\].* not at the same place, on rank 1"):
        words.ask_everywhere("id", begun)
    assert sum(key.endswith("/0") for key in store) == 2  # every group has heard of this rank


def test_what_does_not_count_is_not_asked() -> None:
    assert words.begin([Uncounted()]) == {}
