"""A loader without its first batches is told the epoch of the one that it was made of."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.accelerate.resumed_epoch_order")

SOURCE = """
class DataLoaderShard:
    def __iter__(self):
        self.set_epoch(self.iteration)

    def set_epoch(self, epoch):
        self.batch_sampler.batch_sampler.sampler.set_epoch(epoch)


def skip_first_batches(dataloader, num_batches=0):
    return DataLoaderShard(dataloader.dataset)
"""


class Loader:
    """accelerate's, as far as this goes."""

    def __init__(self, iteration: int = 0) -> None:
        self.iteration = iteration

    def set_epoch(self, epoch: int) -> None:
        self.iteration = epoch


def skipping(made: Any) -> Any:
    """A patched ``skip_first_batches`` that returns what ``made`` says."""
    module = ModuleType("accelerate.data_loader")
    vars(module)["skip_first_batches"] = lambda dataloader, num_batches=0: made
    patch.apply(api.Patch("resumed-epoch-order", Journal()), module)
    return module.skip_first_batches


@pytest.mark.parametrize(("begun", "made", "told"), [(2, 0, 2), (0, 0, 0), (2, 5, 5)])
def test_the_epoch_is_handed_on(begun: int, made: int, told: int) -> None:
    found = Loader(made)
    assert skipping(found)(Loader(begun), num_batches=3) is found
    assert found.iteration == told


def test_another_loader_is_left_alone() -> None:
    found = object()
    assert skipping(found)(Loader(2)) is found
    assert skipping(found)(dataloader=object()) is found


def test_the_bug_is_looked_for() -> None:
    def look(text: str) -> str | None:
        found: str | None = patch.look(api.Code("accelerate.data_loader", "data_loader.py", text))
        return found

    assert look(SOURCE) is None
    given = "dataloader.dataset, iteration=dataloader.iteration"
    assert "is told the epoch" in str(look(SOURCE.replace("dataloader.dataset", given)))
    assert "does not count" in str(look(SOURCE.replace("self.iteration", "0")))
    assert "alone" in str(look(SOURCE.replace("batch_sampler.batch_sampler", "batch_sampler")))
    with pytest.raises(api.Unrecognised):
        look(SOURCE.replace("skip_first_batches", "other"))
