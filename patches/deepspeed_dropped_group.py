"""``ValueError: zip() argument 2 is longer than argument 1`` in ``lr_scheduler.step()``.

Why: transformers makes two parameter groups; with LoRA the one without weight decay is empty. DeepSpeed
removes empty groups from the optimizer after the scheduler was built on them, and from 2.10 torch
insists that both have as many.

Since torch 2.10.0, with every DeepSpeed from 0.11.0; transformers 5.1.0 builds its scheduler later.

The change: when DeepSpeed removes groups, the scheduler it was given forgets them as well.

Upstream: https://github.com/huggingface/transformers/pull/43711
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

_METHOD = "_configure_optimizer"
_PER_GROUP = ("base_lrs", "lr_lambdas", "_last_lr")


def look(code: Code) -> str | None:
    """DeepSpeed must remove the groups where it sets the optimizer up."""
    function = code.function(f"DeepSpeedEngine.{_METHOD}")
    if function is None or "client_optimizer" not in function.parameters:
        raise Unrecognised(f"DeepSpeedEngine.{_METHOD} takes no client_optimizer")
    if 'len(pg["params"]) != 0' not in function:
        return "DeepSpeed removes no empty parameter groups here"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Keep the scheduler in step with the groups."""

    def in_step(original: Any, self: Any, client_optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        groups = list(getattr(client_optimizer, "param_groups", ()))
        kept = [bool(group["params"]) for group in groups]
        result = original(self, client_optimizer, *args, **kwargs)
        if not all(kept) and len(getattr(client_optimizer, "param_groups", ())) == sum(kept):
            _forget(getattr(self, "client_lr_scheduler", None), kept)
        return result

    patch.wrap(module.DeepSpeedEngine, _METHOD, in_step)


def _forget(scheduler: Any, kept: list[bool]) -> None:
    for name in _PER_GROUP:
        values = getattr(scheduler, name, None)
        if isinstance(values, list) and len(values) == len(kept):
            setattr(scheduler, name, [value for value, stays in zip(values, kept, strict=True) if stays])
