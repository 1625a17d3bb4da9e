"""``IndexError: pop from an empty deque`` after TRL has generated under ZeRO-3.

What the user sees: that error in the second step of GRPO or RLOO with LoRA and ``beta`` above zero (TRL's
default until 0.18), with two micro-batches a step: in ``record_parameters``, as a forward begins.

Why: ZeRO-3 records the modules of a step in their order, and for each, by its number, when it ran. To
generate, TRL gathers the model and takes ZeRO-3's hooks off; as they are put on again DeepSpeed numbers every
module anew. A step that was recorded just before is then looked up by numbers that it does not know. Whether
one is recorded just then depends on what runs between: the model without its adapter, as reference, does.

Since TRL first generated under ZeRO-3; 0.29.1 has it, 1.16 drops the step itself. Every DeepSpeed: others
copy TRL's way.

The change: as a forward begins, a recorded step of which a module has another number now is dropped by
DeepSpeed's own function, as one is that went another way. It records the next. All ranks number alike.

Upstream: https://github.com/huggingface/trl/issues/4899, https://github.com/huggingface/trl/pull/4693
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

CLASS = "PartitionedParameterCoordinator"
ORDER, STEPS = f"_{CLASS}__submodule_order", f"_{CLASS}__step_id_module_fetched_for"
NAMES = ("self.__submodule_order", "self.__step_id_module_fetched_for", "def _invalidate_trace")


def look(code: Code) -> str | None:
    """Steps must be recorded in these two places, and be dropped by one function."""
    if code.function(f"{CLASS}.reset_step") is None or not all(name in code.source for name in NAMES):
        raise Unrecognised(f"{CLASS} in {code.path} does not record a step as it did")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Drop a recorded step whose modules were numbered anew."""

    def reset_step(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self.is_record_trace() and _renumbered(self):
            self._invalidate_trace()
        return original(self, *args, **kwargs)

    patch.wrap(getattr(module, CLASS), "reset_step", reset_step)


def _renumbered(coordinator: Any) -> bool:
    """Whether a module of the recorded step has another number than it had then."""
    now = Counter(map(_number, getattr(coordinator, ORDER)))
    return any(len(getattr(coordinator, STEPS).get(number, ())) != times for number, times in now.items())


def _number(module: Any) -> Any:
    return module.ds_id if hasattr(module, "ds_id") else module.id
