"""A resumed training goes on where its checkpoint left a stream, or the batches that one rank hands out."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

streamed: Any = importlib.import_module("vlmpatch.patches.transformers.streamed_resume_place")
dispatched: Any = importlib.import_module("vlmpatch.patches.accelerate.dispatched_resume_place")

LOOP = """
class Trainer:
    def _load_callback_state(self):
        pass

    def _inner_training_loop(self):
        self._load_callback_state()
        epochs_trained = int(self.state.global_step // num_update_steps_per_epoch)
        if not args.ignore_data_skip:
            steps_trained_in_current_epoch = self.state.global_step % (num_update_steps_per_epoch)
            steps_trained_in_current_epoch *= args.gradient_accumulation_steps
"""
SKIPS = """
class DataLoaderDispatcher:
    def _fetch_batches(self, iterator):
        for _ in range(self.state.num_processes):
            batches.append(next(iterator))


def skip_first_batches(dataloader, num_batches=0):
    if isinstance(dataset, IterableDataset):
        new_batch_sampler = None
    else:
        new_batch_sampler = SkipBatchSampler(batch_sampler, skip_batches=num_batches)
"""
SAVED = {"epoch": 1.15, "global_step": 5, "max_steps": 10}  # two a window: three batches of the second pass


class Trainer:
    """transformers', as far as this goes."""

    def __init__(
        self, length: int | None = None, window: int = 2, ignore: bool = False, **saved: Any
    ) -> None:
        steps = {"max_steps": 12, "gradient_accumulation_steps": window, "ignore_data_skip": ignore}
        self.args = SimpleNamespace(**steps)
        self.state = SimpleNamespace(**SAVED | saved)
        self.train_dataset = length

    def _load_callback_state(self) -> str:
        return "loaded"

    def taken_up(self, steps: int) -> tuple[int, int]:
        assert self._load_callback_state() == "loaded"
        epochs, left = int(self.state.global_step // steps), 0
        if not self.args.ignore_data_skip:
            left = self.state.global_step % steps
            left *= self.args.gradient_accumulation_steps
        return epochs, left


def taken_up(steps: int = 12, **of: Any) -> tuple[int, int]:
    """The epochs and batches that a patched Trainer skips; its state is as it was."""
    module: Any = ModuleType("transformers.trainer")
    module.Trainer = type("Trainer", (Trainer,), {"_load_callback_state": Trainer._load_callback_state})
    module.has_length = lambda data: data is not None
    module.skip_first_batches = lambda dataloader, num_batches=0: dataloader
    streamed.apply(api.Patch("streamed-resume-place", Journal()), module)
    trainer = module.Trainer(**of)
    found: tuple[int, int] = trainer.taken_up(steps)
    assert type(trainer.state.global_step) is int
    assert trainer.state.global_step == 5
    return found


def test_a_stream_goes_on_in_its_pass() -> None:
    assert taken_up() == (1, 3)
    assert taken_up(epoch=3.1) == (3, 2)
    assert taken_up(epoch=2.1, window=1) == (2, 1)


@pytest.mark.parametrize("of", [
    {"epoch": 0.5}, {"epoch": None}, {"epoch": 1.0}, {"epoch": 1.12}, {"length": 20},
])  # fmt: skip
def test_what_is_not_known_to_be_later_is_left_alone(of: dict[str, Any]) -> None:
    assert taken_up(**of) == (0, 10)


def test_who_skips_nothing_is_left_alone() -> None:
    assert taken_up(ignore=True) == (0, 0)


def test_a_loader_with_a_length_is_left_alone() -> None:
    assert taken_up(steps=4) == (1, 2)


@pytest.mark.parametrize(("data", "told"), [(None, 2), (20, 0)])
def test_only_a_loader_of_a_stream_is_told_the_epoch(data: int | None, told: int) -> None:
    module: Any = ModuleType("transformers.trainer")
    module.Trainer = type("Trainer", (Trainer,), {"_load_callback_state": Trainer._load_callback_state})
    module.has_length = lambda data: data is not None
    module.skip_first_batches = lambda dataloader, num_batches=0: Loader()
    streamed.apply(api.Patch("streamed-resume-place", Journal()), module)
    assert module.skip_first_batches(Loader(data, iteration=2), 3).iteration == told


def test_the_place_is_a_number() -> None:
    place = streamed.Place(5)
    for same in (copy.deepcopy(place), pickle.loads(pickle.dumps(place)), json.loads(json.dumps(place))):
        assert type(same) is int
        assert same == 5
    assert (place + 1, place // 2, place % 2) == (6, 2, 1)


def test_the_question_is_looked_for() -> None:
    assert streamed.look(api.Code("transformers.trainer", "trainer.py", LOOP)) is None
    for other in (LOOP.replace("_load_callback_state", "other"), LOOP.replace("global_step %", "epoch %")):
        with pytest.raises(api.Unrecognised):
            streamed.look(api.Code("transformers.trainer", "trainer.py", other))


class Sampler:
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Skip:
    """accelerate's sampler of batches, behind which the one of rows lies."""

    def __init__(self) -> None:
        self.batch_sampler = SimpleNamespace(sampler=Sampler())


class Loader:
    """accelerate's, as far as this goes."""

    def __init__(self, dataset: Any = None, split: bool = False, iteration: int = 0) -> None:
        self.dataset, self.split_batches, self.iteration = dataset, split, iteration
        self.batch_sampler, self.skipped = Skip(), 0

    def set_epoch(self, epoch: int) -> None:
        self.iteration = epoch


class Stream:
    pass


def accelerate() -> Any:
    """Patched; there are four ranks."""
    module: Any = ModuleType("accelerate.data_loader")
    module.DataLoaderDispatcher = type("DataLoaderDispatcher", (Loader,), {"set_epoch": Loader.set_epoch})
    module.IterableDataset, module.SkipBatchSampler = Stream, Skip
    module.PartialState = lambda: SimpleNamespace(num_processes=4)

    def skip(dataloader: Loader, num_batches: int = 0) -> Loader:
        found = type(dataloader)()
        found.skipped = num_batches
        return found

    module.skip_first_batches = skip
    dispatched.apply(api.Patch("dispatched-resume-place", Journal()), module)
    return module


@pytest.mark.parametrize(("of", "skipped"), [
    ({}, 12), ({"split": True}, 3), ({"dataset": Stream()}, 3),
])  # fmt: skip
def test_what_all_ranks_had_is_skipped(of: dict[str, Any], skipped: int) -> None:
    module = accelerate()
    assert module.skip_first_batches(module.DataLoaderDispatcher(**of), num_batches=3).skipped == skipped


def test_other_loaders_and_calls_are_left_alone() -> None:
    module = accelerate()
    assert module.skip_first_batches(Loader(), 3).skipped == 3
    assert module.skip_first_batches(module.DataLoaderDispatcher()).skipped == 0
    one = module.DataLoaderDispatcher()
    one.submesh_tp = object()
    assert module.skip_first_batches(one, 3).skipped == 3


def test_the_sampler_behind_is_told_the_epoch() -> None:
    module = accelerate()
    found = module.skip_first_batches(module.DataLoaderDispatcher(iteration=2), 3)
    assert (found.iteration, found.batch_sampler.batch_sampler.sampler.epoch) == (2, 2)
    found.set_epoch(3)
    found.set_epoch(0)
    assert found.batch_sampler.batch_sampler.sampler.epoch == 3  # who tells it nothing tells it himself
    found.batch_sampler = SimpleNamespace(batch_sampler=None)
    found.set_epoch(4)


def test_the_count_is_looked_for() -> None:
    def look(text: str) -> str | None:
        found: str | None = dispatched.look(api.Code("accelerate.data_loader", "data_loader.py", text))
        return found

    assert look(SKIPS) is None
    right = SKIPS.replace("skip_batches=num_batches", "skip_batches=num_batches * state.num_processes")
    assert "every rank" in str(look(right))
    for other in (SKIPS.replace("skip_first", "other"), SKIPS.replace("for _ in", "for i in")):
        with pytest.raises(api.Unrecognised):
            look(other)
