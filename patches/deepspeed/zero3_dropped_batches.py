"""A batch that a script dropped by ``zero_grad`` counted with the next one under ZeRO-3.

What the user sees: nothing. A script drops a batch after its backward (its loss was too large, or NaN) by the
engine's ``zero_grad``, or that of the model within, and goes on with the next: the next step is made of both,
and parameters end 58 to 78 % off; a NaN makes them all NaN.

Why: the engine's ``zero_grad`` clears ``.grad``, where ZeRO-3 keeps nothing. What was reduced lies in the
partitions, to which the next backward adds, unless the optimizer's own ``zero_grad`` was called: that alone
lets a window begin anew.

What is done: where a backward has ended a window and no step has taken it, ``zero_grad`` of the engine, or of
a module that holds all that its optimizer trains, is that of the optimizer as well. Until the next backward
nothing changes: a step that comes first takes what there is, as before.

Left alone: a ``zero_grad`` before the end of a window, which scripts call for every micro-batch and no
release heeds; ZenFlow.

Every release from 0.14.4 to 0.19.8; no upstream report was found.
https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/zero/stage3.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakSet

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.emptied import at_zero_grad

ENGINE, OPTIMIZER = "DeepSpeedEngine", "DeepSpeedZeroOptimizer_Stage3"
EPILOGUE = "independent_gradient_partition_epilogue"
BEGINS_ANEW = "self.micro_step_id = 0"

_ended: WeakSet[Any] = WeakSet()  # optimizers at the end of a window that no step has taken


def look(code: Code) -> str | None:
    """The engine's must not know of the optimizer's, which must let a window begin anew."""
    if code.module.endswith("engine"):
        own = code.function(f"{ENGINE}.zero_grad")
        if own is None:
            raise Unrecognised(f"{code.path} has no {ENGINE}.zero_grad")
        return "it is the optimizer's, too" if "self.optimizer" in own else None
    zero_grad = code.function(f"{OPTIMIZER}.zero_grad")
    if zero_grad is None or BEGINS_ANEW not in zero_grad or code.function(f"{OPTIMIZER}.{EPILOGUE}") is None:
        raise Unrecognised(f"{OPTIMIZER}.zero_grad in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Tell the optimizer of the engine's and the model's."""
    if module.__name__.endswith("engine"):
        patch.wrap(module.DeepSpeedEngine, "zero_grad", zero_grad_of_engine)
        at_zero_grad(patch, lambda: _ended, _drop, groups="fp16_groups")
        return
    optimizer = module.DeepSpeedZeroOptimizer_Stage3
    patch.wrap(optimizer, EPILOGUE, epilogue)
    patch.wrap(optimizer, "step", is_over)
    patch.wrap(optimizer, "zero_grad", is_over)


def epilogue(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the end of a backward."""
    ends = self.is_gradient_accumulation_boundary
    result = original(self, *args, **kwargs)
    if (ends() if callable(ends) else ends) and not getattr(self, "zenflow", False):  # a method since 0.19.5
        _ended.add(self)
    return result


def is_over(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the optimizer's step and its ``zero_grad``."""
    _ended.discard(self)
    return original(self, *args, **kwargs)


def zero_grad_of_engine(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the engine's."""
    if self.optimizer in _ended:
        _drop(self.optimizer)
    return original(self, *args, **kwargs)


def _drop(optimizer: Any) -> None:
    # Whether a gradient is there afterwards says the one that was called.
    optimizer.zero_grad(set_to_none=False)
