"""Nothing; under sequence parallelism HF Trainer leaves out a step of every epoch but the first.

What the user sees: nothing. With accelerate's ``sp_size`` each epoch after the first lacks a step, and the
learning rate does not come to its end. Where accumulation does not divide an epoch's batches, what is left of
one window is counted into the next, at another scale.

Why: DeepSpeed's ``UlyssesSPDataLoaderAdapter`` is its own iterator and begins a new pass after it has raised
``StopIteration``. ``Trainer.get_batch_samples`` takes as many batches as an epoch has and never meets it. The
first window of the next epoch does, comes back empty, and is passed over; the others are a window late.

Since transformers 5.0, whose Trainer has sequence parallelism; measured on 5.23.0 with DeepSpeed 0.19.8.

The change: where a window comes back empty from such an adapter over data of a known length, it is asked for
once more; the adapter has begun its new pass by then. Data whose length nobody knows ends where it ends, and
is left alone, as is a window that got some batches.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/7472, which made the adapter begin again at all
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.sequence_parallel import is_adapter

NAME = "get_batch_samples"
EPOCH = Argument(0, "epoch_iterator")
ADAPTED = "deepspeed_ulysses_dl_adapter"


def look(code: Code) -> str | None:
    """The Trainer must hand its batches to the adapter, and count those of a window."""
    if ADAPTED not in code.source:
        return "the Trainer has no sequence parallelism"
    window = code.function(f"Trainer.{NAME}")
    if window is None or window.parameters[:2] != ("self", EPOCH.name):
        raise Unrecognised(f"{code.module} takes its batches as no known release does")
    return None if "StopIteration" in window else "the end of an epoch reaches its loop"


def apply(patch: Patch, module: ModuleType) -> None:
    """Ask once more for a window that is empty because the pass before it was just over."""
    patch.wrap(module.Trainer, NAME, window)


def window(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``Trainer.get_batch_samples``, which returns a window's batches first."""
    found = original(self, *args, **kwargs)
    if found[0] or not begins_again(EPOCH.of(args, kwargs)):
        return found
    return original(self, *args, **kwargs)


def begins_again(iterator: Any) -> bool:
    """Whether it is DeepSpeed's adapter, over data of a known length."""
    if not is_adapter(iterator):
        return False
    try:
        return len(iterator.dl) > 0
    except TypeError:
        return False
