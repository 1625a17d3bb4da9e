"""Nothing; the last batches of an epoch are lost, or trained in the next one (transformers 4.49 to 4.51).

What the user sees: nothing, in HF Trainer (and what is made of it: TRL, ms-swift) with
``gradient_accumulation_steps`` of three or more that does not divide an epoch's batches: the last of them are
left out, those before share a step with the next epoch's first, and an epoch shorter than a window takes no
step at all. With any number that does not divide, a training ends a step an epoch too early, and a resumed
one goes on at another place.

Why: how many batches the last window has is taken from the number of rows, not of batches, so that it may get
fewer than are left; the loop then never meets the batch that ends the epoch. And an epoch's steps are counted
rounded down, where the loop takes one more.

Since transformers 4.46.0, until 4.52.0, which counts batches and rounds up. 4.46 to 4.48 are left as they
are: they count an epoch's steps where no patch comes in between.

The change: the last window asks for what 4.52 asks for, and an epoch has as many steps as it has windows.
Epochs of whole windows are left alone.

Upstream: https://github.com/huggingface/transformers/blob/v4.52.1/src/transformers/trainer.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.by_identity import ByIdentity

NAME, VALUES = "get_batch_samples", "set_initial_training_values"
ASKED = Argument(1, "num_batches")
ARGS = Argument(0, "args")
COUNTS_ROWS = "remainder = num_examples % args.gradient_accumulation_steps"
ROUNDS_DOWN = "max(len_dataloader // args.gradient_accumulation_steps, 1)"
RETURNED = 7  # values, of which these are used
EPOCHS, STEPS, ROWS, BY_EPOCHS, LENGTH, MAX_STEPS = 0, 1, 2, 4, 5, 6


def look(code: Code) -> str | None:
    """The last window must be counted in rows, and an epoch's steps rounded down."""
    loop, values = (code.function(f"Trainer.{name}") for name in ("_inner_training_loop", VALUES))
    if loop is None or values is None or code.function(f"Trainer.{NAME}") is None:
        raise Unrecognised(f"{code.module} takes its batches as no known release does")
    if COUNTS_ROWS in loop and ROUNDS_DOWN in values:
        return None
    if COUNTS_ROWS in loop or ROUNDS_DOWN in values:
        raise Unrecognised(f"{code.module} counts its windows as no known release does")
    return "the last window is counted in batches"


def apply(patch: Patch, module: ModuleType) -> None:
    """Count the last window, and an epoch's steps, as the next release does."""
    epochs = ByIdentity()  # of a trainer: the batches of one, and its rows

    def values(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        said = ARGS.of(args, kwargs)
        found = original(self, *args, **kwargs)
        if len(found) != RETURNED:
            return found
        epochs.put(self, (found[LENGTH] or 0, found[ROWS]))
        return rounded_up(found, said)

    def window(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        whole, asked = self.args.gradient_accumulation_steps, ASKED.of(args, kwargs)
        length, rows = epochs.get(self) or (0, 0)
        left = length % whole or whole
        # Of the last window alone the loop asks less than a whole one; a script may ask for any number.
        if (
            length
            and asked < left
            and asked == rows % whole
            and self.state.global_step < self.state.max_steps
        ):
            args, kwargs = ASKED.replaced(args, kwargs, left)
        return original(self, *args, **kwargs)

    patch.wrap(module.Trainer, VALUES, values)
    patch.wrap(module.Trainer, NAME, window)


def rounded_up(found: tuple[Any, ...], said: Any) -> tuple[Any, ...]:
    """What ``set_initial_training_values`` returns, with a step for every window of an epoch."""
    steps = math.ceil((found[LENGTH] or 0) / said.gradient_accumulation_steps)
    if not steps or steps == found[STEPS]:
        return found
    counted = list(found)
    counted[STEPS] = steps
    if found[BY_EPOCHS]:
        counted[MAX_STEPS] = math.ceil(said.num_train_epochs * steps)
    else:
        counted[EPOCHS] = math.ceil(found[MAX_STEPS] / steps)
    return tuple(counted)
