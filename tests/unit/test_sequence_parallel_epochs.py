"""Which windows HF Trainer is handed by DeepSpeed's adapter, from one epoch to the next."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

patch: Any = importlib.import_module("vlmpatch.patches.transformers.sequence_parallel_epochs")


class Adapter:
    """DeepSpeed's: its own iterator, which begins again once it has said that it is over."""

    def __init__(self, dl: Any) -> None:
        self.dl, self.iter = dl, iter(dl)

    def __next__(self) -> int:
        try:
            found: int = next(self.iter)
        except StopIteration:
            self.iter = iter(self.dl)
            raise
        return found


class Stream:
    """Data of a length that nobody knows."""

    def __iter__(self) -> Any:
        return iter(range(2))

    def __len__(self) -> int:
        raise TypeError


@pytest.fixture(autouse=True)
def ulysses(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "deepspeed.runtime.sequence_parallel.ulysses_sp"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(UlyssesSPDataLoaderAdapter=Adapter))


def taken(trainer: Any, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[int], None]:
    """As ``Trainer.get_batch_samples`` does."""
    found: list[int] = []
    for _ in range(num_batches):
        try:
            found.append(next(epoch_iterator))
        except StopIteration:
            break
    return found, None


def windows(iterator: Any, sizes: list[int]) -> list[list[int]]:
    return [patch.window(taken, None, iterator, size, None)[0] for size in sizes]


def test_every_epoch_has_all_of_its_windows() -> None:
    assert windows(Adapter(range(5)), [2, 2, 1] * 3) == [[0, 1], [2, 3], [4]] * 3


def test_a_window_that_got_some_is_left_as_it_is() -> None:
    assert windows(Adapter(range(3)), [2, 2, 2]) == [[0, 1], [2], [0, 1]]


@pytest.mark.parametrize("iterator", [Adapter(Stream()), Adapter([]), iter(range(2))])
def test_what_does_not_begin_again_is_asked_once(iterator: Any) -> None:
    first, second = windows(iterator, [2, 2])
    assert (first, second) == ([0, 1][: len(first)], [])


def test_the_window_may_be_asked_for_by_name() -> None:
    adapter = Adapter(range(1))
    asked = {"epoch_iterator": adapter, "num_batches": 1, "device": None}
    assert [patch.window(taken, None, **asked)[0] for _ in range(3)] == [[0]] * 3
