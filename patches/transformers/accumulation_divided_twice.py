"""Nothing; gradients are ``gradient_accumulation_steps`` times too small (transformers 5.2 to 5.5).

What the user sees: nothing, or a ``grad_norm`` that shrinks as accumulation grows, under DDP or on one GPU.
Clipping and SGD see it; Adam hides most.

Why: ``training_step`` divides the loss, by tokens or by steps. From 5.2.0 on the Trainer tells accelerate the
number of steps as well, and ``accelerator.backward`` divides by it once more. Under DeepSpeed accelerate does
not divide.

Since transformers 5.2.0, until 5.6.0, which does not tell accelerate.

The change: accelerate is told one step, as before 5.2.0. A number that the user gave it stands
(``accelerator_config``), and so does that of a trainer whose own ``training_step`` goes backward.

Upstream: https://github.com/huggingface/transformers/blob/v5.3.0/src/transformers/trainer.py
(``create_accelerator_and_postprocess``)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

TELLS = 'grad_acc_kwargs["num_steps"] = self.args.gradient_accumulation_steps'
DIVIDES = "loss = loss / self.current_gradient_accumulation_steps"
STEP = "training_step"


def look(code: Code) -> str | None:
    """``training_step`` must divide, and accelerate be told to."""
    makes, step = (code.function(f"Trainer.{name}") for name in ("create_accelerator_and_postprocess", STEP))
    if makes is None or TELLS not in makes:
        return "accelerate is not told the number of steps"
    return None if step is not None and DIVIDES in step else "training_step leaves the division to accelerate"


def apply(patch: Patch, module: ModuleType) -> None:
    """Tell accelerate one step."""
    upstream = module.Trainer

    def create(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        said = "num_steps" in (self.args.accelerator_config.gradient_accumulation_kwargs or {})
        made = original(self, *args, **kwargs)
        if not said and divides_itself(type(self), upstream):
            patch.replace(self.accelerator, "gradient_accumulation_steps", 1)
        return made

    patch.wrap(upstream, "create_accelerator_and_postprocess", create)


def divides_itself(trainer: type, upstream: type) -> bool:
    """Whether every ``training_step`` of ``trainer`` ends in that of transformers."""
    for cls in trainer.__mro__[: trainer.__mro__.index(upstream)]:
        if STEP in vars(cls):
            code = getattr(inspect.unwrap(vars(cls)[STEP]), "__code__", None)
            names = () if code is None else code.co_names
            if STEP not in names or "backward" in names:
                return False
    return True
