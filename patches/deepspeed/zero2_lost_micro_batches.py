"""ZeRO-2 counted only the last micro-batch of a window.

What the user sees: nothing. With ``gradient_accumulation_steps`` above 1 gradients are off by 80 to
107 %: those of the last micro-batch, divided by the number of micro-batches. ZeRO-1, ZeRO-3 and
ZeRO-2 with ``offload_optimizer`` are right.

Why: since 0.17.6 a window's sums are kept in ``all_grad_tensors`` until its last micro-batch, but the
question whether there are any is put to ``averaged_gradients``, which is filled at the window's end.
So each micro-batch begins the sums anew.

What is done: where a window is open, the gradients of its partition are handed over added to what is
there, in place, so that nothing more is held or computed than upstream means to. A ``zero_grad`` of the
engine, of its optimizer or of the model drops them: a script that calls it within a window is right without
this.

DeepSpeed 0.17.6 to 0.18.2. Upstream: https://github.com/deepspeedai/DeepSpeed/pull/7509 brought it,
https://github.com/deepspeedai/DeepSpeed/pull/7665 ended it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakSet

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.emptied import at_zero_grad

ENGINE, OPTIMIZER = "DeepSpeedEngine", "DeepSpeedZeroOptimizer"
GATHER = "get_all_grad_tensors"
ASKS = "self.averaged_gradients[i] is None"
EPILOGUE = "independent_gradient_partition_epilogue"
KEEPS = "self.all_grad_tensors[i] = self.get_all_grad_tensors(self.params_in_partition[i],"

_ending: WeakSet[Any] = WeakSet()  # optimizers at the end of a backward
_known: WeakSet[Any] = WeakSet()  # those that had one


def look(code: Code) -> str | None:
    """The epilogue must ask one dictionary and keep its sums in the other."""
    if code.module.endswith("engine"):
        if code.function(f"{ENGINE}.zero_grad") is None:
            raise Unrecognised(f"{code.path} has no {ENGINE}.zero_grad")
        return None
    epilogue = code.function(f"{OPTIMIZER}.{EPILOGUE}")
    if epilogue is None:
        raise Unrecognised(f"{code.path} has no independent_gradient_partition_epilogue")
    if code.function(f"{OPTIMIZER}.{GATHER}") is None:
        return "sums are kept in averaged_gradients, which is what is asked"
    if ASKS not in epilogue:
        return "all_grad_tensors is asked, where the sums are"
    if KEEPS not in epilogue:
        raise Unrecognised(f"the epilogue in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand over the gradients of a micro-batch added to those of the ones before it."""
    if module.__name__.endswith("engine"):
        patch.wrap(module.DeepSpeedEngine, "zero_grad", zero_grad_of_engine)
        at_zero_grad(patch, lambda: _known - _ending, _drop)
        return

    def gather(
        original: Callable[..., Any], self: Any, /, tensor_list: list[Any], *args: Any, **kwargs: Any
    ) -> Any:
        group = next((i for i, params in enumerate(self.params_in_partition) if params is tensor_list), None)
        found = original(self, tensor_list, *args, **kwargs)
        if group is None or self.averaged_gradients.get(group) is not None:
            return found
        so_far = self.all_grad_tensors.get(group)
        if so_far is None:
            return found
        for total, new in zip(so_far, found, strict=True):
            total.add_(new)
        return so_far

    patch.wrap(module.DeepSpeedZeroOptimizer, GATHER, gather)
    patch.wrap(module.DeepSpeedZeroOptimizer, EPILOGUE, epilogue)
    patch.wrap(module.DeepSpeedZeroOptimizer, "zero_grad", zero_grad)


def epilogue(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the end of a backward, which calls ``zero_grad`` as well."""
    _known.add(self)
    _ending.add(self)
    try:
        return original(self, *args, **kwargs)
    finally:
        _ending.discard(self)


def zero_grad(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the optimizer's, which a step calls too, when the window is over."""
    if self not in _ending:
        _drop(self)
    return original(self, *args, **kwargs)


def zero_grad_of_engine(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the engine's, which does not call the optimizer's."""
    if type(self.optimizer).__name__ == OPTIMIZER:
        _drop(self.optimizer)
    return original(self, *args, **kwargs)


def _drop(optimizer: Any) -> None:
    optimizer.all_grad_tensors.update(dict.fromkeys(optimizer.all_grad_tensors))
