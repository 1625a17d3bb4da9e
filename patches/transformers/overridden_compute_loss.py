"""``compute_loss() got an unexpected keyword argument 'num_items_in_batch'``.

What the user sees: a script with a Trainer of its own ends in its first step: GLM-4's fine-tune script, and
any other whose ``compute_loss(self, model, inputs, return_outputs=False)`` is from 2024.

Why: from 4.46 on the Trainer hands the number of tokens to ``compute_loss``.

Since transformers 4.46.0.

The change: an overridden ``compute_loss`` that can take no such argument is called without it, and the
Trainer divides its loss by the accumulated steps, as it did when the script was written. Recognised by the
signature when a trainer is built; a class with a ``training_step`` of its own is left alone.

Upstream: https://github.com/zai-org/GLM-4/issues/652, https://github.com/zai-org/GLM-4/issues/611
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, signature

from .._shared.compute_losses import COUNT, layers_of

ACCEPTS = "model_accepts_loss_kwargs"


def look(code: Code) -> str | None:
    """The Trainer must hand the number on."""
    function = code.function("Trainer.training_step")
    if function is None or f"{COUNT}={COUNT}" not in function:
        return f"Trainer hands no {COUNT} to compute_loss"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Look at the class of every trainer that is built."""

    def without_count(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if COUNT in kwargs:  # a loop of the user's own hands over nothing, and hears nothing
            del kwargs[COUNT]
            name = type(self).__qualname__
            patch.warn(name, f"{name}.compute_loss should take num_items_in_batch=None, or **kwargs.")
        return original(self, *args, **kwargs)

    def construct(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        cls: Any = type(self)
        if cls.training_step is module.Trainer.training_step and not takes_count(cls.compute_loss):
            owner = next(base for base in cls.__mro__ if "compute_loss" in vars(base))
            patch.wrap(owner, "compute_loss", without_count)
            patch.replace(self, ACCEPTS, False)

    patch.wrap(module.Trainer, "__init__", construct)


def takes_count(method: Any) -> bool:
    """Whether ``method`` can be called with the number of tokens; what decorates it may see to that."""
    outermost = next(layers_of(method), method)
    try:
        parameters = signature(outermost, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        return True  # it cannot be told: left alone
    return COUNT in parameters or any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )
