"""``CPMTrainer.training_step() takes 3 positional arguments but 4 were given``.

Why: MiniCPM-V's trainer overrides ``training_step(self, model, inputs)``. From 4.46.0 transformers passes
``num_items_in_batch`` as well.

Since transformers 4.46.0; the script takes the argument since September 2025.

The change: the argument is not handed to a ``training_step`` that does not take it.

Upstream: https://github.com/OpenBMB/MiniCPM-V/issues/698
"""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, signature

from .._shared.minicpmv import NOT_THE_SCRIPT, is_script_trainer, methods, trainer_classes

_OLD = ("self", "model", "inputs")


def look(code: Code) -> str | None:
    """The script's own ``training_step`` must take the model and the inputs only."""
    if not is_script_trainer(code):
        return NOT_THE_SCRIPT
    steps = [method for _, method in methods(code, "training_step")]
    if not any(_is_old(method.args) for method in steps):
        return "training_step takes num_items_in_batch, or is not overridden"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Drop what the script's ``training_step`` does not take."""

    def without_count(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("num_items_in_batch", None)
        return original(self, *args[:2], **kwargs)

    for cls in trainer_classes(module):
        step = vars(cls).get("training_step")
        if callable(step) and tuple(signature(step).parameters) == _OLD:
            patch.wrap(cls, "training_step", without_count)
            patch.warn("old", f"{cls.__name__}.training_step should take num_items_in_batch=None.")


def _is_old(args: ast.arguments) -> bool:
    names = tuple(argument.arg for argument in args.args)
    return names == _OLD and not (args.vararg or args.kwarg or args.kwonlyargs)
