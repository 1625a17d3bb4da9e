"""ZeRO-3, a linear layer whose bias is trained and whose weight is not: ``UnboundLocalError``.

What the user sees: ``cannot access local variable 'dim'`` (Python 3.10: ``local variable 'dim' referenced
before assignment``) in DeepSpeed's ``linear.py``, in the first backward: LoRA with ``bias="all"`` or
``bias="lora_only"``, or biases alone.

Why: ZeRO-3 puts its own function in the place of ``torch.nn.functional.linear``. Its backward counts the
dimensions of what came in only where the weight gets a gradient, and needs the number for the bias too.

Since ZeRO-3's linear layer tells two dimensions from three (2023); ended in DeepSpeed 0.17.4.

The change: where a bias gets a gradient and its weight none, DeepSpeed computes what goes on to the input,
and the gradient of the bias is summed here, as 0.17.4 does. Every other layer goes DeepSpeed's own way.

Upstream: https://github.com/deepspeedai/DeepSpeed/issues/7435, https://github.com/deepspeedai/DeepSpeed/pull/7449
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

CLASS = "LinearFunctionForZeroStage3"
COUNTED, ASKED = "dim = grad_output.dim()", "if ctx.needs_input_grad[1]:"


def look(code: Code) -> str | None:
    """Dimensions must be counted behind the question whether the weight is trained."""
    function = code.function(f"{CLASS}.backward")
    if function is None or COUNTED not in function or ASKED not in function:
        raise Unrecognised(f"{CLASS}.backward in {code.path} is not as any known release has it")
    early = function.source.index(COUNTED) < function.source.index(ASKED)
    return "dimensions are counted whatever is trained" if early else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Sum the gradient of such a bias."""

    def backward(original: Callable[..., Any], /, ctx: Any, grad_output: Any) -> Any:
        weight, *bias = ctx.needs_input_grad[1:]  # a layer without a bias is called with two arguments
        if weight or not any(bias):
            return original(ctx, grad_output)
        to_input, to_weight, _ = original(_WithoutBias(ctx), grad_output)
        return to_input, to_weight, grad_output.sum(tuple(range(grad_output.dim() - 1)))

    patch.wrap(getattr(module, CLASS), "backward", backward)


class _WithoutBias:
    """What a backward is told, but that the bias is not trained."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.needs_input_grad = (*ctx.needs_input_grad[:2], False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)
