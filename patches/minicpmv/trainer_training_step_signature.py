"""``CPMTrainer.training_step() takes 3 positional arguments but 4 were given``.

Why: MiniCPM-V's trainer overrides ``training_step(self, model, inputs)``. From 4.46.0 transformers passes
``num_items_in_batch`` as well.

Since transformers 4.46.0; the script takes the argument since September 2025.

The change: the argument is not handed to a ``training_step`` that does not take it.

Upstream: https://github.com/OpenBMB/MiniCPM-V/issues/698
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from ._minicpmv import NOT_THE_SCRIPT, is_script_trainer, methods, trainer_classes


def look(code: Code) -> str | None:
    """The script's own ``training_step`` must take the model and the inputs only."""
    if not is_script_trainer(code):
        return NOT_THE_SCRIPT
    steps = [method for _, method in methods(code.source, "training_step")]
    if not any(_is_old(method.args.args, method.args.vararg, method.args.kwarg) for method in steps):
        return "training_step takes num_items_in_batch, or is not overridden"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Drop what the script's ``training_step`` does not take."""

    def without_count(
        original: Any, self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> Any:
        return original(self, model, inputs)

    for cls in trainer_classes(module):
        step = vars(cls).get("training_step")
        if step is not None and len(inspect.signature(step).parameters) == 3:
            patch.wrap(cls, "training_step", without_count)
            patch.warn("old", f"{cls.__name__}.training_step should take num_items_in_batch=None.")


def _is_old(names: list[Any], vararg: Any, kwarg: Any) -> bool:
    return len(names) == 3 and vararg is None and kwarg is None
