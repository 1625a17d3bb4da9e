"""``ValueError: zip() argument 2 is longer than argument 1`` in ``lr_scheduler.step()``.

Why: transformers makes two parameter groups; with LoRA the one without weight decay is empty. DeepSpeed
removes empty groups from the optimizer after the scheduler was built on them, and from 2.10 torch
insists that both have as many.

Since torch 2.10.0 (not in 2.9.1), with every DeepSpeed from 0.11.0; transformers 5.1.0 builds its
scheduler later.

The change: when DeepSpeed has removed groups of an optimizer, the schedulers built on it forget them as
well. DeepSpeed is seldom told of the scheduler, so schedulers are noted, weakly, when they are made.

Upstream: https://github.com/huggingface/transformers/pull/43711
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any
from weakref import ref

from vlmpatch.api import Argument, Code, Patch, Unrecognised

_ENGINE, _METHOD = "DeepSpeedEngine", "_configure_optimizer"
_SCHEDULER = "LRScheduler"
OPTIMIZER = Argument(0, "client_optimizer")
_PER_GROUP = ("base_lrs", "lr_lambdas", "_last_lr")
# By id and not by the object: a user's scheduler or optimizer may be unhashable, or equal to another.
_schedulers: dict[int, ref[Any]] = {}


def look(code: Code) -> str | None:
    """DeepSpeed must remove groups where it sets the optimizer up, and torch count them."""
    if code.function(f"{_SCHEDULER}.__init__") is not None:
        return None if "strict=True" in code.source else "torch does not count the groups here"
    function = code.function(f"{_ENGINE}.{_METHOD}")
    if function is None or "client_optimizer" not in function.parameters:
        raise Unrecognised(f"{_ENGINE}.{_METHOD} takes no client_optimizer")
    if 'len(pg["params"]) != 0' not in function:
        return "DeepSpeed removes no empty parameter groups here"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Note schedulers as they are made; keep them in step with the groups."""

    def keeping_step(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        optimizer = OPTIMIZER.of(args, kwargs)
        kept = [bool(group["params"]) for group in getattr(optimizer, "param_groups", ())]
        result = original(self, *args, **kwargs)
        if not all(kept) and optimizer is not None and len(optimizer.param_groups) == sum(kept):
            for scheduler in _of(optimizer):
                _forget(patch, scheduler, kept)
        return result

    if hasattr(module, _ENGINE):
        patch.wrap(getattr(module, _ENGINE), _METHOD, keeping_step)
    else:
        patch.wrap(getattr(module, _SCHEDULER), "__init__", _noted)


def _noted(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    key = id(self)
    with contextlib.suppress(TypeError):  # takes no weak reference
        _schedulers[key] = ref(self, lambda _gone: _schedulers.pop(key, None))


def _of(optimizer: Any) -> list[Any]:
    found = [reference() for reference in list(_schedulers.values())]
    return [scheduler for scheduler in found if getattr(scheduler, "optimizer", None) is optimizer]


def _forget(patch: Patch, scheduler: Any, kept: list[bool]) -> None:
    for name in _PER_GROUP:
        values = getattr(scheduler, name, None)
        if isinstance(values, list) and len(values) == len(kept):
            remaining = [value for value, stays in zip(values, kept, strict=True) if stays]
            patch.replace(scheduler, name, remaining)
