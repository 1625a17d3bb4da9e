"""Which batches are left of DeepSpeed's adapter when HF Trainer resumes, and in which order."""

from __future__ import annotations

import importlib
import sys
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

patch: Any = importlib.import_module("vlmpatch.patches.transformers.sequence_parallel_resume")
RANKS, ROWS = 2, 3  # of a group; batches of the loader within


class Loader:
    """As accelerate's: it counts its passes, and each has an order of its own."""

    def __init__(self, skipped: int = 0, epoch: int = 0) -> None:
        self.skipped, self.epoch = skipped, epoch

    def __len__(self) -> int:
        return ROWS - self.skipped

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[str]:
        epoch = self.epoch
        yield from [f"{epoch}{row}" for row in range(self.skipped, ROWS)]
        self.epoch = epoch + 1


class Adapter:
    """DeepSpeed's: each batch becomes one a rank, and it begins again once it has said that it is over."""

    def __init__(self, dl: Any, sp_rank: int, sp_group: Any, sp_world_size: int, device: Any) -> None:
        self.dl, self.sp_rank, self.sp_group = dl, sp_rank, sp_group
        self.sp_world_size, self.device = sp_world_size, device
        self.iter, self.micro_batches = iter(dl), deque[str]()

    def __len__(self) -> int:
        return len(self.dl) * self.sp_world_size

    def __iter__(self) -> Adapter:
        return self

    def __next__(self) -> str:
        if not self.micro_batches:
            try:
                batch = next(self.iter)
            except StopIteration:
                self.iter = iter(self.dl)
                raise
            self.micro_batches.extend(f"{batch}{rank}" for rank in range(self.sp_world_size))
        return self.micro_batches.popleft()

    set_epoch = patch.set_epoch


@pytest.fixture(autouse=True)
def ulysses(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "deepspeed.runtime.sequence_parallel.ulysses_sp"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(UlyssesSPDataLoaderAdapter=Adapter))


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Loader:
    """As accelerate's: of nothing but a loader."""
    assert isinstance(dataloader, Loader)
    return Loader(dataloader.skipped + num_batches, dataloader.epoch)


def adapter(loader: Any = None) -> Adapter:
    return Adapter(loader or Loader(), 0, None, RANKS, None)


def epoch_of(number: int) -> list[str]:
    return [f"{number}{row}{rank}" for row in range(ROWS) for rank in range(RANKS)]


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("skipped", range(RANKS * ROWS + 1))
def test_what_was_trained_on_is_passed_over(skipped: int, epoch: int) -> None:
    left = patch.skipping(skip_first_batches, adapter(), skipped)
    left.set_epoch(epoch)  # in the Trainer's order
    assert (len(left), list(iter(left))) == (RANKS * ROWS - skipped, epoch_of(epoch)[skipped:])


def test_the_number_may_be_passed_by_name_or_left_out() -> None:
    assert list(patch.skipping(skip_first_batches, adapter(), num_batches=5)) == epoch_of(0)[5:]
    assert list(patch.skipping(skip_first_batches, dataloader=adapter())) == epoch_of(0)


def test_an_epoch_after_the_resumed_one_is_whole() -> None:
    whole = adapter()
    list(patch.skipping(skip_first_batches, whole, 1))
    whole.set_epoch(1)
    assert [next(whole) for _ in range(RANKS * ROWS)] == epoch_of(1)


def test_a_loader_that_has_begun_counts_its_passes_itself() -> None:
    whole = adapter()
    assert [next(whole) for _ in range(RANKS * ROWS)] == epoch_of(0)
    whole.set_epoch(1)  # while the first pass has not come to its end
    assert list(whole) == []
    assert list(whole) == epoch_of(1)


@pytest.mark.parametrize("loader", [range(3), [1, 2]])
def test_a_loader_that_takes_no_epoch_is_told_none(loader: Any) -> None:
    whole = adapter(loader)
    whole.set_epoch(4)
    assert len(list(whole)) == RANKS * len(loader)


class Open(Adapter):
    """Of a library that gave it what accelerate takes apart."""

    dataset = range(ROWS)


@pytest.mark.parametrize("loader", [Loader(), Open(Loader(), 0, None, RANKS, None)])
def test_any_other_loader_is_handed_on_as_it_is(loader: Any) -> None:
    asked: list[Any] = []

    def skip(dataloader: Any, num_batches: int = 0) -> str:
        asked.append((dataloader, num_batches))
        return "skipped"

    assert patch.skipping(skip, loader, num_batches=2) == "skipped"
    assert asked[0][0] is loader
    assert asked[0][1] == 2
