"""Nothing is seen: gradients are ``gradient_accumulation_steps`` times too large.

Why: MiniCPM-V's trainer overrides ``training_step`` as it was in 2024: it calls
``self.accelerator.backward(loss)`` and leaves the division to accelerate. From 4.46.1 transformers no
longer tells accelerate the number of steps, because its own ``training_step`` divides. DeepSpeed divides
by itself, so DDP and single-process runs are hit.

Since transformers 4.46.1.

The change: the script's trainer, and no other, tells accelerate the number of steps again.

Upstream: https://github.com/huggingface/transformers/releases/tag/v4.46.1
"""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.minicpmv import NOT_THE_SCRIPT, is_script_trainer, methods, trainer_classes


def look(code: Code) -> str | None:
    """The script's own ``training_step`` must go backward without dividing the loss."""
    if not is_script_trainer(code):
        return NOT_THE_SCRIPT
    steps = [method for _, method in methods(code, "training_step")]
    if not steps:
        return "training_step is not overridden"
    if any(_divides(step) for step in steps):
        return "training_step divides the loss itself"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Tell the accelerator of the script's trainer what older transformers told it."""

    def with_steps(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        steps = self.args.gradient_accumulation_steps
        accelerator = self.accelerator
        if not self.is_deepspeed_enabled and accelerator.gradient_accumulation_steps != steps:
            patch.replace(accelerator, "gradient_accumulation_steps", steps)
            patch.warn(
                "undivided",
                f"{type(self).__name__}.training_step should divide the loss by "
                "self.args.gradient_accumulation_steps before backward; accelerate does it for now.",
            )
        return result

    for cls in trainer_classes(module):
        patch.wrap(cls, "create_accelerator_and_postprocess", with_steps)


def _divides(step: ast.FunctionDef) -> bool:
    """Whether a loss that goes into ``backward`` was divided: the result is bound to a name again."""
    divisions = [node for node in ast.walk(step) if isinstance(node, (ast.Assign, ast.AugAssign))]
    return any(
        "gradient_accumulation_steps" in ast.unparse(node) and _has_division(node) for node in divisions
    )


def _has_division(node: ast.stmt) -> bool:
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Div)
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div) for part in ast.walk(node))
