"""``object has no attribute 'ds_grads_remaining'``, with torch's checkpoint wrapper.

What the user sees: ZeRO-3 on a model whose layers are in ``checkpoint_wrapper`` ends in the first forward.

Why: DeepSpeed keeps its hooks' state on each module and asks ``hasattr(module, "post_bwd_fn")`` whether a
module has it already. torch's wrapper hands on every name it does not know to the layer inside, so the
wrapper is left without hooks of its own and counts on a module that has not run yet.

Since DeepSpeed 0.16.5, until 0.19.3, which looks in the module's own ``__dict__``.

The change: torch's wrapper no longer hands on the four names of that state where the layer inside has it from
DeepSpeed.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/8144
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

STATE = frozenset({"pre_bwd_fn", "post_bwd_fn", "ds_grads_remaining", "applied_pre_backward_ref_cnt"})


def look(code: Code) -> str | None:
    """The wrapper must hand on names."""
    names = code.class_names("ActivationWrapper")
    return None if names and "__getattr__" in names else "this torch's wrapper answers for itself"


def apply(patch: Patch, module: ModuleType) -> None:
    """Keep DeepSpeed's names out of the delegation."""

    def own(original: Callable[[Any, str], Any], self: Any, /, name: str) -> Any:
        found = original(self, name)
        if name in STATE and (type(found) is int or _by_deepspeed(found)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return found

    patch.wrap(module.ActivationWrapper, "__getattr__", own)


def _by_deepspeed(value: Any) -> bool:
    """Whether it is one of DeepSpeed's classes: a layer of the user's own may have the names."""
    return str(getattr(value, "__module__", "")).startswith("deepspeed.")
