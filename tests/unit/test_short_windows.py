"""The last window of an epoch gets what is left of it, and ends a step."""

from __future__ import annotations

import copy
import importlib
import itertools
import json
import pickle
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

streamed: Any = importlib.import_module("vlmpatch.patches.transformers.streamed_short_window")
counted: Any = importlib.import_module("vlmpatch.patches.transformers.short_window_counted")

STREAMED = """
class Trainer:
    def _run_epoch(self, model):
        for i, inputs in enumerate(batch_samples):
            step += 1
            do_sync_step = (step + 1) % args.gradient_accumulation_steps == 0 or (step + 1) == steps_in_epoch
            self.accelerator.gradient_state._set_sync_gradients(do_sync_step)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        return batch_samples, num_items_in_batch
"""

COUNTED = """
class Trainer:
    def _inner_training_loop(self):
        remainder = num_examples % args.gradient_accumulation_steps

    def get_batch_samples(self, epoch_iterator, num_batches):
        return batch_samples, num_items_in_batch

    def set_initial_training_values(self, args, dataloader, total_train_batch_size):
        num_update_steps_per_epoch = max(len_dataloader // args.gradient_accumulation_steps, 1)
"""

ROWS = 16  # of which the loop makes a last window of one batch


class Trainer:
    """transformers', as far as this goes."""

    def __init__(self, steps: int) -> None:
        self.args = SimpleNamespace(gradient_accumulation_steps=steps, num_train_epochs=2)
        self.state = SimpleNamespace(global_step=0, max_steps=6)
        self.ended: list[int] = []

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int) -> tuple[list[int], None]:
        return list(itertools.islice(epoch_iterator, num_batches)), None

    def set_initial_training_values(self, args: Any, length: int | None, max_steps: int) -> tuple[Any, ...]:
        steps = max((length or 0) // args.gradient_accumulation_steps, 1)
        return (2, steps, ROWS, 0, max_steps < 0, length, 2 * steps if max_steps < 0 else max_steps)

    def _run_epoch(self, data: list[int]) -> None:
        iterator, step = iter(data), -1
        while batches := self.get_batch_samples(iterator, self.args.gradient_accumulation_steps)[0]:
            for batch in batches:
                step += 1
                if (step + 1) % self.args.gradient_accumulation_steps == 0:
                    self.ended.append(batch)
                if batch < 0:
                    return


def made(which: Any, base: type = Trainer) -> type[Any]:
    """A patched Trainer's class."""
    module = ModuleType("transformers.trainer")
    found = type("Trainer", (base,), {name: value for name, value in vars(base).items() if name[:2] != "__"})
    vars(module)["Trainer"] = found
    which.apply(api.Patch("short-windows", Journal()), module)
    return found


@pytest.mark.parametrize(
    ("data", "ended"),
    [([0, 1, 2, 3, 4], [2, 4]), ([0, 1, 2, 3, 4, 5], [2, 5]), ([0, 1], [1]), ([0, 1, 2, 3], [2, 3])],
)
def test_a_stream_that_is_over_ends_a_step(data: list[int], ended: list[int]) -> None:
    trainer = made(streamed)(3)
    trainer._run_epoch(data)
    assert trainer.ended == ended
    assert type(trainer.args.gradient_accumulation_steps) is int


def test_a_loop_that_is_left_leaves_the_number() -> None:
    trainer = made(streamed)(3)
    trainer._run_epoch([0, -1])
    assert trainer.ended == [-1]
    assert type(trainer.args.gradient_accumulation_steps) is int


def test_a_loop_of_ones_own_is_left_alone() -> None:
    class Own(made(streamed)):  # type: ignore[misc]
        def _run_epoch(self, data: list[int]) -> None:
            super()._run_epoch(data)

    trainer = Own(3)
    trainer._run_epoch([0, 1, 2, 3])
    assert trainer.ended == [2]


def test_what_stands_in_for_the_number_is_that_number() -> None:
    for kept in (pickle.loads, copy.deepcopy):
        once = streamed.Once(4)
        found = kept(pickle.dumps(once) if kept is pickle.loads else once)
        assert (type(found), found) == (int, 4)
    once = streamed.Once(4)
    assert (once, json.dumps(once), f"{once}", 8 // once) == (4, "4", "4", 2)
    assert [3 % once, 3 % once, 8 % once] == [0, 3, 0]


def test_the_last_window_is_asked_for_what_is_left() -> None:
    trainer = made(counted)(3)
    assert trainer.set_initial_training_values(trainer.args, 8, -1) == (2, 3, ROWS, 0, True, 8, 6)
    assert trainer.get_batch_samples(iter([6, 7]), 1)[0] == [6, 7]
    assert trainer.get_batch_samples(iter([6, 7]), 2)[0] == [6, 7]
    assert trainer.get_batch_samples(iter([6, 7, 8, 9]), 3)[0] == [6, 7, 8]
    assert trainer.get_batch_samples(iter([6, 7]), 0)[0] == []  # a script's own call
    trainer.state.global_step = 6
    assert trainer.get_batch_samples(iter([6, 7]), 1)[0] == [6]  # after the training


def test_a_trainer_need_not_be_one_that_a_dictionary_takes() -> None:
    class Own(made(counted)):  # type: ignore[misc]
        def __eq__(self, other: object) -> bool:
            return True

    trainer = Own(3)
    trainer.set_initial_training_values(trainer.args, 8, -1)
    assert trainer.get_batch_samples(iter([6, 7]), 1)[0] == [6, 7]


def test_steps_are_counted_by_windows() -> None:
    trainer = made(counted)(3)
    assert trainer.set_initial_training_values(trainer.args, 8, 7) == (3, 3, ROWS, 0, False, 8, 7)
    assert trainer.set_initial_training_values(trainer.args, 9, -1) == (2, 3, ROWS, 0, True, 9, 6)
    assert trainer.set_initial_training_values(trainer.args, None, 7) == (2, 1, ROWS, 0, False, None, 7)
    assert trainer.get_batch_samples(iter([6, 7]), 1)[0] == [6]  # nobody knows what is left of it


def test_the_bugs_are_looked_for() -> None:
    def look(which: Any, text: str) -> str | None:
        found: str | None = which.look(api.Code("transformers.trainer", "trainer.py", text))
        return found

    assert look(streamed, STREAMED) is None
    assert "of all batches" in str(
        look(streamed, STREAMED.replace("(step + 1) %", "total_batched_samples %"))
    )
    for text in ("step += 1\n", "get_batch_samples"):
        with pytest.raises(api.Unrecognised):
            look(streamed, STREAMED.replace(text, "pass\n" if "\n" in text else "other"))
    assert look(counted, COUNTED) is None
    rounded = COUNTED.replace("max(len", "ceil(len")
    assert "counted in batches" in str(look(counted, rounded.replace("num_examples", "steps_in_epoch")))
    for text in (rounded, COUNTED.replace("get_batch_samples", "other")):
        with pytest.raises(api.Unrecognised):
            look(counted, text)
