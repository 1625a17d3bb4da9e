"""Selective checkpointing under ZeRO-3: the recompute added the bias of a linear layer a second time.

What the user sees: nothing. With ``create_selective_checkpoint_contexts`` and a policy that keeps ``aten.mm``
(matrix products are kept, the rest is computed again) gradients are wrong as soon as a linear layer inside a
block has a bias that is not zero: 0.7 % in the second step of a small Qwen2-VL, whose biases begin at zero,
and more with those of a trained model.

Why: ZeRO-3 puts its own function in the place of ``torch.nn.functional.linear``. For an input of three
dimensions it multiplies, and adds the bias in place to what came out, which is what the policy has kept. The
recompute takes what was kept for the product, and adds the bias to it again. torch looks for such a change by
the version of a tensor; the reshape between the product and the bias has made another version of it.

The change: while a selective checkpoint looks on, DeepSpeed multiplies only, and the bias is added into
another tensor. The policy is asked about the same product, and numbers are those without it to the last bit.

Left alone: everything outside a selective checkpoint; layers without a bias; what is being compiled.

Every release from 0.14.4 to 0.19.8; before 0.19 where the model was made under ``zero.Init``, as HF Trainer's
``from_pretrained`` does: only that put the function in its place. Upstream: https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/zero/linear.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.compiling import compiling

NAME = "zero3_linear_wrap"
FUNCTION = "LinearFunctionForZeroStage3.forward"
IN_PLACE = "output += bias"
MODES = ("_CachingTorchDispatchMode", "_CachedTorchDispatchMode")  # of torch.utils.checkpoint


def look(code: Code) -> str | None:
    """The bias must be added in place, and in one operation where the input is a matrix."""
    function = code.function(FUNCTION)
    if function is None or code.function(NAME) is None:
        raise Unrecognised(f"{code.module} has no {FUNCTION} or no {NAME}")
    if IN_PLACE not in function:
        return f"{FUNCTION} adds no bias in place"
    if "torch.addmm(bias, input, weight.t())" not in function:
        raise Unrecognised(f"{FUNCTION} in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Add the bias to another tensor where the product is kept for a recompute."""
    import torch
    from torch.utils import checkpoint

    depth: Callable[[], int] = torch._C._len_torch_dispatch_stack
    at: Callable[[int], Any] = torch._C._get_dispatch_stack_at
    modes = tuple(getattr(checkpoint, name) for name in MODES if hasattr(checkpoint, name))
    tracing = compiling()

    class Sum(torch.autograd.Function):  # type: ignore[misc]
        """A product and a bias, rounded as DeepSpeed rounds them, and so their gradients."""

        @staticmethod
        def forward(product: Any, bias: Any) -> Any:
            """``(..., features)`` and ``(features,)``; the type of the product."""
            return (product + bias).to(product.dtype)

        @staticmethod
        def setup_context(context: Any, inputs: Any, output: Any) -> None:
            """Nothing is kept."""

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            """As of ``product + bias``."""
            return gradient, gradient.sum(tuple(range(gradient.dim() - 1)))

    def kept() -> bool:
        return any(isinstance(at(place), modes) for place in range(depth()))

    def linear(original: Callable[..., Any], /, input: Any, weight: Any, bias: Any = None) -> Any:
        if bias is None or input.dim() == 2 or not depth() or tracing() or not kept():
            return original(input, weight, bias)
        return Sum.apply(original(input, weight), bias)

    patch.wrap(module, NAME, linear)
