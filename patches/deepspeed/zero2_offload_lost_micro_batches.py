"""ZeRO-2 with the optimizer offloaded counted only the first and the last micro-batch of a window.

What the user sees: nothing, or a ``grad_norm`` smaller than without offload. With ``offload_optimizer`` and
``gradient_accumulation_steps`` above 2 the gradients of all micro-batches between the first and the last are
lost: 55 to 104 % off with three and four.

Why: the first micro-batch writes its gradients to the CPU; each later one adds what is there to its own and
does not write the sum back.

What is done: the sum of a micro-batch in the middle of a window is written back, as the later releases do.

Seen in DeepSpeed 0.15.4 to 0.18.9; 0.14.5 and those from 0.19.0 on do not have it.
https://github.com/deepspeedai/DeepSpeed/pull/6550 brought it,
https://github.com/deepspeedai/DeepSpeed/pull/7967 ended it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

OPTIMIZER = "DeepSpeedZeroOptimizer"
ACCUMULATE = "async_accumulate_grad_in_cpu_via_gpu"
FIRST_ONLY = re.compile(r"else:\s+copy_gradients_to_cpu\(\)")  # else: not the first
LOW = ("fp16_master_weights_and_gradients", "low_precision_master_weights_and_grads")  # renamed in 0.18.3


def look(code: Code) -> str | None:
    """Only the first micro-batch must write to the CPU."""
    function = code.function(f"{OPTIMIZER}.{ACCUMULATE}")
    if function is None or "self.accumulated_grads_in_cpu[param_id]" not in function:
        raise Unrecognised(f"{OPTIMIZER}.{ACCUMULATE} in {code.path} is not as any known release has it")
    if not FIRST_ONLY.search(function.source):
        return "every micro-batch writes its sum back"
    if not any(name in function for name in LOW):
        raise Unrecognised(f"{OPTIMIZER}.{ACCUMULATE} in {code.path} keeps its sums in another way")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Write the sums of a window's middle back."""

    def accumulate(original: Callable[..., Any], self: Any, /, param: Any) -> None:
        original(self, param)
        boundary = self.is_gradient_accumulation_boundary
        if self.micro_step_id > 0 and not (boundary() if callable(boundary) else boundary):
            _write_back(self, param)

    patch.wrap(module.DeepSpeedZeroOptimizer, ACCUMULATE, accumulate)


def _write_back(optimizer: Any, param: Any) -> None:
    number = optimizer.get_param_id(param)
    sums = optimizer.get_param_gradient_attribute(param).data.view(-1)
    if any(getattr(optimizer, name, False) for name in LOW):
        _, offset, _, count = optimizer.grad_position[number]
        sums = sums.narrow(0, offset, count)
    optimizer.accumulated_grads_in_cpu[number].data.copy_(sums, non_blocking=True)
