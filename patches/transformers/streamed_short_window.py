"""Nothing, or a loss that doubles once a pass: the last, short window of a stream is no step.

What the user sees: nothing, in HF Trainer (and what is made of it: TRL, ms-swift) over a dataset without a
length, with ``gradient_accumulation_steps`` above one, where a pass over the data ends in the midst of a
window. What is left over is trained together with the first window of the next pass, in one step: its
gradient is the sum of two, the loss that is logged with it too. With one process, too.

Why: the loop takes its batches by windows, and each is divided by its own tokens or batches. A window ends a
step where ``gradient_accumulation_steps`` divides the number of batches, or where that number is the
length of the epoch, which nobody knows of a stream.

Since transformers 4.47.0, whose windows begin anew with an epoch; 4.46 mixes windows of all data.

The change: where fewer batches came than a window was to have, the stream is over, and the last of them ends
a step: the Trainer's own question, whether ``gradient_accumulation_steps`` divides, is answered so once.
Nothing else sees another number. Left alone: windows that are whole, and trainers with a loop of their own.

Upstream: https://github.com/huggingface/transformers/pull/34198, which made windows of the batches
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

NAME, STEPS = "get_batch_samples", "gradient_accumulation_steps"
ASKED = Argument(1, "num_batches")
LOOPS = ("_run_epoch", "_inner_training_loop")  # of transformers 5, and of 4
_ASKS = re.compile(
    r"enumerate\(batch_samples\):\s+step \+= 1\s+"
    rf"do_sync_step = \(step \+ 1\) % (self\.)?args\.{STEPS} == 0 or \(step \+ 1\) == steps_in_epoch\s"
)


class Once(int):
    """A number that divides the first it is asked for, and after that those that it does divide."""

    asked = False

    def __rmod__(self, number: int) -> int:
        if self.asked:
            return int(number) % int(self)
        self.asked = True
        return 0

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class Window(list[Any]):
    """The batches of a window that is short; at the last one the loop is told to end it."""

    def __init__(self, batches: list[Any], patch: Patch, args: Any) -> None:
        super().__init__(batches)
        self._patch, self._args = patch, args

    def __iter__(self) -> Iterator[Any]:
        batches = list(super().__iter__())
        yield from batches[:-1]
        with self._patch.swapped(self._args, STEPS, Once(getattr(self._args, STEPS))):
            yield batches[-1]


def look(code: Code) -> str | None:
    """A window must end by the number of batches, and the loop ask so before anything else."""
    if code.function(f"Trainer.{NAME}") is None:
        raise Unrecognised(f"{code.module} takes its batches as no known release does")
    loops = [found for name in LOOPS if (found := code.function(f"Trainer.{name}"))]
    if any(_ASKS.search(loop.source) for loop in loops):
        return None
    if any("total_batched_samples" in loop for loop in loops):
        return "a window ends by the number of all batches"
    raise Unrecognised(f"{code.module} ends its windows as no known release does")


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand over a short window as one whose last batch ends it."""
    trainer = module.Trainer
    loop = next(name for name in LOOPS if hasattr(trainer, name))

    def window(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        batches, *rest = found
        if type(batches) is not list or not 0 < len(batches) < ASKED.of(args, kwargs):
            return found
        if getattr(type(self), loop) is not getattr(trainer, loop):
            return found
        return (Window(batches, patch, self.args), *rest)

    patch.wrap(trainer, NAME, window)
