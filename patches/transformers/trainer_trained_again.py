"""``AttributeError: 'NoneType' object has no attribute 'backward'`` when a Trainer trains a second time.

What the user sees: under DeepSpeed, any stage, ``trainer.train()`` works and the next ``trainer.train()``
of the same Trainer dies in its first backward; so does the first one where ``evaluate()`` or
``predict()`` came before.

Why: each training begins with ``accelerator.free_memory()``, which destroys the engine. The Trainer goes
on with it all the same, for it takes a model that is wrapped as it is, and accelerate is handed an
optimizer without a model: it has no engine to call.

In every transformers from 4.45 on, to this day.

The change: a DeepSpeed engine that has been destroyed is not taken for a wrapped model, and the Trainer
makes one as it did the first time, with a new optimizer, for it has discarded the old one by itself. The
weights go on from where they are. Between two trainings transformers refuses another number of steps
where DeepSpeed's configuration names a scheduler, as before.

Upstream: https://github.com/huggingface/transformers/issues/24558, where a batch size is looked for
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

NAME = "_wrap_model"
ENGINE = "deepspeed_engine_wrapped"  # accelerate's, None once it has let its memory go


def look(code: Code) -> str | None:
    """A training must begin by letting accelerate's memory go, and then take what is wrapped as it is."""
    if "self._wrap_model(self.model_wrapped)" not in code.source:
        raise Unrecognised("the Trainer does not take up what it has wrapped")
    if "self.accelerator.free_memory()" not in code.source:
        return "this Trainer destroys no engine"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Take the model itself where the engine around it is no more."""

    def wraps(original: Callable[..., Any], self: Any, /, model: Any, *args: Any, **kwargs: Any) -> Any:
        taken = self.model if destroyed(self, model) else model
        return original(self, taken, *args, **kwargs)

    patch.wrap(module.Trainer, NAME, wraps)


def destroyed(trainer: Any, model: Any) -> bool:
    """Whether ``model`` is the engine of a training that is over."""
    if model is trainer.model or model is not trainer.model_wrapped:
        return False
    deepspeed = getattr(trainer, "is_deepspeed_enabled", False)
    return deepspeed and getattr(trainer.accelerator, ENGINE, ...) is None
