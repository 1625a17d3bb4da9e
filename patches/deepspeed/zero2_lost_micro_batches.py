"""ZeRO-2 counted only the last micro-batch of a window.

What the user sees: nothing. With ``gradient_accumulation_steps`` above 1 gradients are off by 80 to
107 %: those of the last micro-batch, divided by the number of micro-batches. ZeRO-1, ZeRO-3 and
ZeRO-2 with ``offload_optimizer`` are right.

Why: since 0.17.6 a window's sums are kept in ``all_grad_tensors`` until its last micro-batch, but the
question whether there are any is put to ``averaged_gradients``, which is filled at the window's end.
So each micro-batch begins the sums anew.

What is done: where a window is open, the gradients of its partition are handed over added to what is
there, in place, so that nothing more is held or computed than upstream means to.

DeepSpeed 0.17.6 to 0.18.2. Upstream: https://github.com/deepspeedai/DeepSpeed/pull/7509 brought it,
https://github.com/deepspeedai/DeepSpeed/pull/7665 ended it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

OPTIMIZER = "DeepSpeedZeroOptimizer"
GATHER = "get_all_grad_tensors"
ASKS = "self.averaged_gradients[i] is None"
KEEPS = "self.all_grad_tensors[i] = self.get_all_grad_tensors(self.params_in_partition[i],"


def look(code: Code) -> str | None:
    """The epilogue must ask one dictionary and keep its sums in the other."""
    epilogue = code.function(f"{OPTIMIZER}.independent_gradient_partition_epilogue")
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

    def gather(
        original: Callable[..., Any], self: Any, /, tensor_list: list[Any], *args: Any, **kwargs: Any
    ) -> Any:
        found = original(self, tensor_list, *args, **kwargs)
        group = next((i for i, params in enumerate(self.params_in_partition) if params is tensor_list), None)
        if group is None or self.averaged_gradients.get(group) is not None:
            return found
        so_far = self.all_grad_tensors.get(group)
        if so_far is None:
            return found
        for total, new in zip(so_far, found, strict=True):
            total.add_(new)
        return so_far

    patch.wrap(module.DeepSpeedZeroOptimizer, GATHER, gather)
