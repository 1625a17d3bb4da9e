"""``AttributeError: 'Resampler' object has no attribute 'ds_grads_remaining'``.

What the user sees: ZeRO-3 with PEFT's ``modules_to_save`` ends in the first forward, checkpointing on or
off.

Why: DeepSpeed keeps its hooks' state on each module and asks ``hasattr(module, "post_bwd_fn")`` whether a
module has it already. PEFT's wrapper answers for the module it wraps, which was registered a moment
before, so the wrapper is left without hooks of its own and counts on a module that has not run yet.

Since DeepSpeed 0.16.5, which asks when it registers instead of at the first forward, with PEFT from
0.14.0 on, whose wrapper hands on every name it does not know. DeepSpeed 0.19.3 looks in the module's own
``__dict__``.

What is done: PEFT's wrapper no longer hands on the four names of that state. Other wrappers that delegate
are not touched.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/8144
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

CLASSES = ("AuxiliaryTrainingWrapper", "ModulesToSaveWrapper")  # the first is the base from 0.15.0 on
STATE = frozenset({"pre_bwd_fn", "post_bwd_fn", "ds_grads_remaining", "applied_pre_backward_ref_cnt"})


def look(code: Code) -> str | None:
    """The wrapper must hand on names."""
    if any("__getattr__" in (code.class_names(name) or ()) for name in CLASSES):
        return None
    return "this PEFT's wrapper answers for itself"


def apply(patch: Patch, module: ModuleType) -> None:
    """Keep DeepSpeed's names out of the delegation."""

    def own(original: Callable[[Any, str], Any], self: Any, /, name: str) -> Any:
        if name in STATE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return original(self, name)

    owner = next(
        cls for name in CLASSES if (cls := getattr(module, name, None)) and "__getattr__" in vars(cls)
    )
    patch.wrap(owner, "__getattr__", own)
