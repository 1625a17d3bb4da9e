"""Nothing is printed: under DeepSpeed the last micro-batches of an epoch are not a step of their own.

What the user sees: nothing, with ``gradient_accumulation_steps`` above one and an epoch whose micro-batches
it does not divide. HF Trainer (and what is made of it: TRL, ms-swift) counts a step at the end of the epoch,
logs it with the gradient norm of the one before, and moves the rate on; the engine takes none. What is left
over is added to the first window of the next epoch, whose own last ones go the same way: from then on steps
end in the middle of windows, and the last micro-batches of the training never count.

Why: the engine counts micro-batches by itself, and accelerate does not tell it where a window ends.

Until accelerate 1.8, which tells it (https://github.com/huggingface/accelerate/pull/3630); with transformers
from 4.47 on, whose Trainer ends a window with its epoch, and in loops by ``accelerator.accumulate()``.

The change: accelerate's own word for a backward that ends a window, ``sync_gradients``, holds for the engine
too while that backward and its step run. Left alone: a loop that never says that a backward does not end one,
and so leaves the counting to the engine; an engine that a script tells where a window ends.

Upstream: https://github.com/huggingface/accelerate/issues/3552
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakSet

from vlmpatch.api import Code, Patch, Unrecognised

OWNER, NAME = "Accelerator", "backward"
ENGINE = "deepspeed_engine_wrapped"
TOLD = "_is_gradient_accumulation_boundary"  # None: the engine counts by itself


def look(code: Code) -> str | None:
    """The engine's wrapper must not be told whether a window ends."""
    function = code.function(f"{OWNER}.{NAME}")
    if function is None or f"self.{ENGINE}.backward(" not in function:
        raise Unrecognised(f"{code.module} has no {OWNER}.{NAME} that calls DeepSpeed's engine")
    return "accelerate tells the engine where a window ends" if "sync_gradients" in function else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let the engine end a window where accelerate does."""
    counted: WeakSet[Any] = WeakSet()  # engines of which accelerate says where a window ends, and where not

    def backward(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        engine = getattr(getattr(self, ENGINE, None), "engine", None)
        if engine is None or getattr(engine, TOLD, False) is not None:
            return original(self, *args, **kwargs)
        ends = self.sync_gradients
        if not ends:
            counted.add(engine)
        if engine not in counted:
            return original(self, *args, **kwargs)
        with patch.swapped(engine, TOLD, ends):
            return original(self, *args, **kwargs)

    patch.wrap(getattr(module, OWNER), NAME, backward)
