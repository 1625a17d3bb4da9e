"""A backward that passed through a frozen network counted as a backward of that network's engine.

What the user sees: a network learns through another, which is frozen meanwhile and has an engine of its own
(a discriminator, a critic, a reward model). ZeRO-1 and ZeRO-2 end in ``IndexError: list index out of range``,
fp16 in ``Loss scaling is required for this configuration``. Under ZeRO-3 nothing is seen: the other network's
next step is taken with its new gradient and its last one, 59 % of what the run moved most.

Why: tensors that an engine returned have hooks that begin a backward of that engine, and have its end called
when the whole backward is over. The end reduces buckets that nothing was put in, and counts a micro-batch.

What is done: an engine none of whose parameters is trained at that time begins no backward, unless it is told
to by ``engine.backward``.

Since DeepSpeed 0.18.3; measured on 0.19.8. No upstream report was found.
https://github.com/deepspeedai/DeepSpeed/pull/7665 brought it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

ENGINE, PROLOGUE = "DeepSpeedEngine", "_backward_prologue"
GROUPS = ("bit16_groups", "fp16_groups")  # of ZeRO-1 and 2, and of ZeRO-3


def look(code: Code) -> str | None:
    """The hooks on what an engine returned must begin its backward."""
    prologue = code.function(f"{ENGINE}.{PROLOGUE}")
    begins = ("self.optimizer.backward_prologue()", "self._running_engine_backward")
    if prologue is None or prologue.parameters != ("self",) or not all(text in prologue for text in begins):
        return "no hook on what the engine returns begins a backward"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Begin none where nothing is trained."""
    patch.wrap(module.DeepSpeedEngine, PROLOGUE, prologue)


def prologue(original: Callable[..., Any], self: Any, /) -> Any:
    """Around ``DeepSpeedEngine._backward_prologue``."""
    if self._running_engine_backward or _is_trained(self.optimizer):
        return original(self)
    return None


def _is_trained(optimizer: Any) -> bool:
    groups = next((getattr(optimizer, name) for name in GROUPS if hasattr(optimizer, name)), None)
    return groups is None or any(param.requires_grad for group in groups for param in group)
