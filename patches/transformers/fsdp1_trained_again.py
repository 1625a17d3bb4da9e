"""``'weight' must be 2-D`` when a Trainer under FSDP1 trains after it has evaluated, or a second time.

What the user sees: HF Trainer, FSDP1. ``trainer.evaluate()`` or ``trainer.predict()`` works, and the
``trainer.train()`` that follows dies in its first forward, since transformers 5 with ``'NoneType' object has
no attribute 'param_groups'``. From 4.47 to 5.2 every second ``trainer.train()`` dies of it, too.

Why: an evaluation has accelerate wrap the model and keeps it as ``trainer.model``; what is to be trained next
is noted elsewhere, and is still the model without its wrapper, in which weights are flat shards that nothing
gathers. And those releases begin each training by taking FSDP's wrappers off, for accelerate to put new ones
around the shards (https://github.com/huggingface/transformers/pull/34452, for ``auto_find_batch_size``).

Every transformers from 4.45 on, to this day.

The change: a model that FSDP1 has wrapped is trained as it is, and stays so; who else asks transformers to
take wrappers off gets what is inside. With ``auto_find_batch_size`` a
training that has run out of memory is begun again around a model that FSDP has in the middle of a step; that
ended before and is no concern of this patch.

Upstream: https://github.com/huggingface/transformers/issues/34113, whose fix brought the second
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

WRAP, UNWRAP = "_wrap_model", "unwrap_model"
RECURSIVE = Argument(0, "recursive")


def look(code: Code) -> str | None:
    """A training must take up what was noted as wrapped."""
    if f"self.{WRAP}(self.model_wrapped)" not in code.source:
        raise Unrecognised("the Trainer does not take up what it has wrapped")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Train what FSDP1 has wrapped as it is."""

    def wraps(original: Callable[..., Any], self: Any, /, model: Any, *args: Any, **kwargs: Any) -> Any:
        taken = self.model if is_inside(model, self.model) else model
        return original(self, taken, *args, **kwargs)

    def unwraps(original: Callable[..., Any], /, model: Any, *args: Any, **kwargs: Any) -> Any:
        if RECURSIVE.of(args, kwargs, False) and is_wrapped(model) and _asked_by() == module.__name__:
            return model
        return original(model, *args, **kwargs)

    patch.wrap(module.Trainer, WRAP, wraps)
    if hasattr(module, UNWRAP):
        patch.wrap(module, UNWRAP, unwraps)


def _asked_by() -> Any:
    """The module whose code called the function that a wrapper of ours, which asks, is around."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("vlmpatch."):
        frame = frame.f_back
    return None if frame is None else frame.f_globals.get("__name__")


def is_wrapped(model: Any) -> bool:
    """Whether FSDP1 has the whole of ``model``."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # some builds of torch have none
    return fsdp is not None and isinstance(model, fsdp.FullyShardedDataParallel)


def is_inside(model: Any, wrapped: Any) -> bool:
    """Whether ``model`` is what FSDP1's wrapper ``wrapped`` is around."""
    return is_wrapped(wrapped) and wrapped.module is model
