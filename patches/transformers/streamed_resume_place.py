"""Nothing; a streamed training resumed after its first pass begins the stream again at its first row.

What the user sees: nothing, in HF Trainer (and what is made of it: TRL, ms-swift) with
``resume_from_checkpoint`` over a dataset without a length, from a checkpoint within the second pass or a
later one. The first rows of the stream are trained again, those after the checkpoint come later or never; a
stream that is shuffled by ``set_epoch`` goes on in another pass's order. Older releases, 4.51 among them, end
such a training at once: "There seems not to be a single sample in your epoch_iterator". With one process too.

Why: the number of steps is divided by those of an epoch, and what is left over is skipped. A stream counts as
one epoch of ``max_steps``, so that all batches of all passes are to be skipped in the first; it dries up, and
the loop goes on with the next pass from its first row. Yet a checkpoint says where the stream was left, as
``epoch`` in ``trainer_state.json``: the passes, and the share of ``max_steps`` that the last of them took.

In transformers 4 and 5; a pull request is open upstream.

The change: where a checkpoint comes from a later pass over a stream, the Trainer's own two questions, how
many epochs and how many windows were trained, are answered by that. The loader without the first batches is
told the epoch, as transformers 5 tells it. Left alone: ``ignore_data_skip``, datasets with a length,
checkpoints from within the first pass, and those whose ``epoch`` is no whole number of batches (another
``gradient_accumulation_steps``). A checkpoint from the very end of a pass still ends the training where an
older release says so.

Upstream: https://github.com/huggingface/transformers/issues/26413,
https://github.com/huggingface/transformers/pull/33544
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised, assign

from .._shared.epochs import LOADER, NAME, skipping

LOADED, STEPS = "_load_callback_state", "global_step"
LOOPS = ("_init_training_state", "_inner_training_loop")  # of transformers 5, and of 4
CLOSE = 1e-3  # of a batch
_ASKS = re.compile(
    rf"self\.{LOADED}\(\)\s+epochs_trained = int\(self\.state\.{STEPS} // num_update_steps_per_epoch\)\s+"
    r"if not (self\.)?args\.ignore_data_skip:\s+"
    rf"steps_trained_in_current_epoch = self\.state\.{STEPS} % \(?num_update_steps_per_epoch\)?\s"
)


class Windows(int):
    """Windows of a pass; times the batches of one, the batches of all: the last window may be short."""

    batches = 0

    def __mul__(self, window: int) -> int:
        return self.batches


class Place(int):
    """The number of steps, which a Trainer asks once for epochs and once for what is left over."""

    passes = whole = 0
    windows = Windows()
    over: Callable[[], object] = staticmethod(lambda: None)

    def __floordiv__(self, steps: int) -> int:
        return self.passes if steps == self.whole else int(self) // steps

    def __mod__(self, steps: int) -> int:
        self.over()
        return self.windows if steps == self.whole else int(self) % steps

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


def look(code: Code) -> str | None:
    """The place must be taken from the number of steps, right after the checkpoint's state was read."""
    loops = [found for name in LOOPS if (found := code.function(f"Trainer.{name}"))]
    if code.function(f"Trainer.{LOADED}") and any(_ASKS.search(loop.source) for loop in loops):
        return None
    raise Unrecognised(f"{code.module} takes up a training as no known release does")


def apply(patch: Patch, module: ModuleType) -> None:
    """Tell a Trainer over a stream how many passes are behind it."""

    def loaded(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        state, said, data = self.state, self.args, self.train_dataset
        found = original(self, *args, **kwargs)
        if said.ignore_data_skip or module.has_length(data):
            return found
        left = left_at(state.epoch, state.max_steps, said.gradient_accumulation_steps)
        if left is not None:
            place = Place(getattr(state, STEPS))
            place.passes, place.windows, place.whole = *left, said.max_steps
            place.over = lambda: assign(state, STEPS, int(place))
            assign(state, STEPS, place)
        return found

    def skip(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if module.has_length(getattr(LOADER.of(args, kwargs), "dataset", None)):
            return original(*args, **kwargs)
        return skipping(original, *args, **kwargs)

    patch.wrap(module.Trainer, LOADED, loaded)
    patch.wrap(module, NAME, skip)


def left_at(epoch: float | None, max_steps: int, window: int) -> tuple[int, Windows] | None:
    """The whole passes and what was taken of the next one; None in the first, or where they are not known."""
    passes = int(epoch or 0)
    taken = ((epoch or 0) - passes) * max_steps * window
    batches = round(taken)
    if not passes or abs(taken - batches) > CLOSE:
        return None
    if not batches:  # ``max_steps`` were all taken in one pass, the first, which may go on
        return None
    windows = Windows(math.ceil(batches / window))
    windows.batches = batches
    return passes, windows
