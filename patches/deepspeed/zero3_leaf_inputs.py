"""LoRA on the experts alone fails under ZeRO-3: "The size of tensor a (0) must match the size of tensor b".

What the user sees: that error in the first backward, where nothing before a leaf module is trained (LoRA on
experts only, a frozen model with one trained leaf, a leaf that comes first), or where a leaf is called by
keyword. With checkpointing, frameworks call ``enable_input_require_grads()`` and the first does not show.

Why: ZeRO-3 reduces a leaf's gradients in a full backward hook of the leaf. Where no input wants a gradient,
or none that torch's hooks see (they see no keywords), torch calls it as soon as a gradient reaches the leaf's
output, so before the leaf's own backward: zeros are reduced, the weights are let go, and the backward finds
them empty.

Every DeepSpeed with leaf modules; 0.18 makes leaves of Qwen2-MoE, Qwen3-MoE and Mixtral by itself.

The change: keywords of a leaf's call take their places, and where none of its inputs wants a gradient the
first does, which nobody reads. The numbers stay what they are; the backward computes one gradient more, for
the first such leaf of the model only: what comes after it wants one anyway.

Left alone: models without frozen weights, but for what ``zero3-sparse-experts`` made a leaf; a leaf without
trained weights; inputs that want a gradient; what is computed without gradients; what is being compiled.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/4966
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.compiling import compiling
from .._shared.zero3_leaves import LEAF, MODULE, by_place, look_at_register, ours, register


def look(code: Code) -> str | None:
    """ZeRO-3 must know leaves and put its hooks on one module at a time."""
    if "z3_leaf_module" not in code.source:
        return "this ZeRO-3 knows no leaf modules"
    look_at_register(code)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Put our hook on a leaf before DeepSpeed puts its own there: they see the inputs that ours returns."""
    import torch

    offload = module.DeepSpeedZeRoOffload
    tracing = compiling()

    def before_leaf(
        leaf: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if tracing() or not torch.is_grad_enabled():
            return None
        args, kwargs = by_place(leaf, args, kwargs) if kwargs else (args, kwargs)
        return wanting(leaf, args) or args, kwargs

    def put_hooks(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
        sub_module = MODULE.of(args, kwargs)
        frozen = any(not parameter.requires_grad for parameter in self.module.parameters())
        if getattr(sub_module, LEAF, False) and (frozen or sub_module in ours):
            patch.hook(sub_module.register_forward_pre_hook, before_leaf, with_kwargs=True)
        original(self, *args, **kwargs)

    patch.wrap(offload, register(offload), put_hooks)


def wanting(leaf: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """``inputs`` with one that wants a gradient; None where they can stay as they are."""
    import torch

    tensors = [n for n, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    if any(inputs[n].requires_grad for n in tensors):
        return None
    number = next((n for n in tensors if inputs[n].is_floating_point()), None)
    if number is None or not any(p.requires_grad for p in leaf.parameters()):
        return None
    # A copy, which is no leaf of the graph: the forward may write into its input.
    return (*inputs[:number], inputs[number].detach().requires_grad_().clone(), *inputs[number + 1 :])
