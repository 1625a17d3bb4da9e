"""Nothing; a resumed training trains rows twice where an epoch's order is drawn from a random state.

What the user sees: nothing. HF Trainer, and what is made of it, with ``group_by_length`` (in transformers 5
``train_sampling_strategy="group_by_length"``), ``use_seedable_sampler=False``, GRPO of TRL or a sampler of
one's own, as LLaVA has it, and ``resume_from_checkpoint`` from within the second epoch or a later one: some
of that epoch's rows are trained twice and others not at all. In any engine, with one process too. A sampler
with a generator of its own also begins again with the first epoch's order where it is resumed between two.

Why: such a sampler draws an epoch's order from torch's random state as the epoch begins, or from its own
generator, which goes on from epoch to epoch. A checkpoint holds the state after its last step. The order is
drawn before that is loaded, from what the process began with: right in the first epoch, and in no other.

Since transformers 4.41: before, the orders of all epochs that were trained were drawn once more. The sampler
that accelerate makes draws from a seed and an epoch's number and needs nothing, nor does any that is told an
epoch.

The change: each epoch's beginning is noted, and a checkpoint gets a small file for each rank beside its
random state. Resumed, the order is drawn from what it was drawn from. All ranks go by theirs or none does:
each must find its file, written by as many ranks with the same seeds, sampler and number of rows. A training
that is not resumed draws what it drew.

Upstream: https://github.com/huggingface/transformers/pull/48025 (an evaluation's order, not a training's),
https://github.com/wyim-pgl/transgenic/issues/59
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from vlmpatch.api import Argument, Code, Patch, Unrecognised, assign

from .._shared.distributed import largest, rank, world

NAME, LOADER = "skip_first_batches", Argument(0, "dataloader")
CHECKPOINT, PLACE = Argument(0, "checkpoint"), Argument(0, "output_dir")
RESUMES, SAVES, LOADS = "_load_optimizer_and_scheduler", "_save_rng_state", "_load_rng_state"
BEGINS, TOLD = "on_epoch_begin", "set_epoch"
LOOPS = ("_run_epoch", "_inner_training_loop")  # of transformers 5, and of 4
WRAPPERS = 4  # at most, around a batch sampler: one shares batches out, one skips some
State = dict[str, Any]


def look(code: Code) -> str | None:
    """The batches that were trained must be skipped before the random state is loaded."""
    loops = [found for name in LOOPS if (found := code.function(f"Trainer.{name}"))]
    held = all(code.function(f"Trainer.{name}") for name in (RESUMES, SAVES, LOADS))
    if held and any(f"{NAME}(" in loop and f"self.{LOADS}(" in loop for loop in loops):
        return None
    raise Unrecognised(f"{code.module} takes up a training as no known release does")


class Resumed:
    """A training that goes on from a checkpoint, until its first epoch has begun."""

    def __init__(self, trainer: Any, checkpoint: str) -> None:
        self._of, self.file = ref(trainer), Path(checkpoint, file_name())

    def by(self, trainer: Any) -> bool:
        """Whether it is this one's."""
        return self._of() is trainer

    def over(self, loader: Any) -> Any:
        """The Trainer, if it trains over ``loader``; None otherwise."""
        trainer: Any = self._of()
        if trainer is None or trainer.callback_handler.train_dataloader is not loader:
            return None
        return trainer


def apply(patch: Patch, module: ModuleType) -> None:
    """Keep what an epoch's order is drawn from, and draw it from there again."""
    begun: WeakKeyDictionary[Any, State] = WeakKeyDictionary()  # of each Trainer's callbacks
    taken_up: list[Resumed] = []  # one at most

    def begins(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        note(self)
        return found

    def note(callbacks: Any) -> None:
        loader = getattr(callbacks, "train_dataloader", None)
        if (sampler := drawing(loader)) is not None:
            begun[callbacks] = {"kept": kept(loader), "begun": drawn_from(sampler)}

    def saves(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        state = begun.get(self.callback_handler)
        if state and (sampler := drawing(self.callback_handler.train_dataloader)) is not None:
            import torch

            said = {"of": known_by(self.args, sampler), "now": generator_state(sampler)}
            with contextlib.suppress(OSError, RuntimeError):  # as torch says that a disk is full
                torch.save(state | said, Path(PLACE.of(args, kwargs), file_name()))
        return found

    def resumes(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        checkpoint = CHECKPOINT.of(args, kwargs)
        taken_up[:] = [Resumed(self, checkpoint)] if checkpoint and not self.args.ignore_data_skip else []
        return original(self, *args, **kwargs)

    def skip(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        found, loader = original(*args, **kwargs), LOADER.of(args, kwargs)
        trainer = taken_up[0].over(loader) if taken_up else None
        if trainer is not None and (state := read(trainer, taken_up.pop())) is not None:
            draw_from(state["begun"], drawing(loader))
            if state["kept"]:
                apart(found, state)
            if persistent(loader):
                apart(loader, state)
            begun[trainer.callback_handler] = {name: state[name] for name in ("kept", "begun")}
        return found

    def loads(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if taken_up and taken_up[0].by(self):  # between two epochs: nothing was skipped
            loader = self.callback_handler.train_dataloader
            if (state := read(self, taken_up.pop())) is not None:
                if state["now"] is not None:
                    drawing(loader).generator.set_state(state["now"])
                if persistent(loader):
                    apart(loader, state)
            note(self.callback_handler)
        return found

    patch.wrap(module.CallbackHandler, BEGINS, begins)
    patch.wrap(module.Trainer, SAVES, saves)
    patch.wrap(module.Trainer, RESUMES, resumes)
    patch.wrap(module.Trainer, LOADS, loads)
    patch.wrap(module, NAME, skip)


def file_name() -> str:
    """What this rank's file is called in a checkpoint."""
    return f"vlmpatch_order_{rank()}.pt"


def drawing(loader: Any) -> Any:
    """The sampler of ``loader``, if it may draw an order from a random state; None otherwise."""
    import torch

    if isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset):
        return None
    batches: Any = getattr(loader, "batch_sampler", None) or getattr(loader, "sampler", None)
    for _ in range(WRAPPERS):
        batches = getattr(batches, "batch_sampler", batches)
    sampler = getattr(batches, "sampler", None)
    if sampler is None or isinstance(sampler, torch.utils.data.SequentialSampler):
        return None
    return None if hasattr(sampler, TOLD) or hasattr(batches, TOLD) else sampler


def kept(loader: Any) -> bool:
    """Whether an epoch begins without a draw from torch's random state: the seed of its workers."""
    within = getattr(loader, "base_dataloader", loader)
    lives_on = persistent(loader) and getattr(within, "_iterator", None) is not None
    return lives_on or getattr(within, "generator", None) is not None


def persistent(loader: Any) -> bool:
    """Whether workers stay from epoch to epoch."""
    return bool(getattr(loader, "persistent_workers", False))


def apart(loader: Any, state: State) -> None:
    """Have ``loader`` draw its workers' seed elsewhere: the training that was not stopped draws none."""
    import torch

    within = getattr(loader, "base_dataloader", loader)
    if within.generator is None:
        generator = torch.Generator()
        generator.set_state(state["begun"]["torch"])
        assign(within, "generator", generator)


def generator_state(sampler: Any) -> Any:
    """The state of a sampler's own generator; None without one."""
    generator: Any = getattr(sampler, "generator", None)
    return generator.get_state() if hasattr(generator, "get_state") else None


def drawn_from(sampler: Any) -> State:
    """All that the next order may be drawn from, as torch loads it from a file that runs no code."""
    import numpy
    import torch

    name, keys, *rest = numpy.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype("int64")), *rest),
        "torch": torch.get_rng_state(),
        "sampler": generator_state(sampler),
    }


def draw_from(state: State, sampler: Any) -> None:
    """Have the next order drawn from ``state``."""
    import numpy
    import torch

    name, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    torch.set_rng_state(state["torch"])
    if state["sampler"] is not None:
        sampler.generator.set_state(state["sampler"])


def known_by(said: Any, sampler: Any) -> list[Any]:
    """By what a training is known to draw the order that another drew."""
    rows = len(sampler) if hasattr(sampler, "__len__") else None
    seeds = [said.seed, getattr(said, "data_seed", None)]
    owned = generator_state(sampler) is not None
    return [world(), *seeds, type(sampler).__name__, rows, owned]


def read(trainer: Any, resumed: Resumed) -> State | None:
    """What this rank's file says, where every rank's says something; the ranks meet for that."""
    import torch

    sampler = drawing(trainer.callback_handler.train_dataloader)
    if sampler is None:
        return None
    state: State | None = None
    if resumed.file.is_file():
        with contextlib.suppress(Exception):  # a file that was cut off is none
            found = torch.load(resumed.file, weights_only=True)
            state = found if found["of"] == known_by(trainer.args, sampler) else None
    groups = [torch.distributed.group.WORLD] if world() > 1 else []
    return None if largest(int(state is None), groups, trainer.args.device) else state
