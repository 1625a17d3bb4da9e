"""LoRA on the experts alone fails under ZeRO-3: "The size of tensor a (0) must match the size of tensor b".

What the user sees: that error in the first backward, where nothing before a leaf module is trained: LoRA on
experts only, a frozen model with one trained leaf. With checkpointing, frameworks call
``enable_input_require_grads()`` and it does not show.

Why: ZeRO-3 reduces a leaf's gradients in a full backward hook of the leaf. Where no input wants a gradient,
torch calls it as soon as a gradient reaches the leaf's output, so before the leaf's own backward: zeros are
reduced, the weights are let go, and the backward finds them empty.

Every DeepSpeed with leaf modules; 0.18 makes leaves of Qwen2-MoE, Qwen3-MoE and Mixtral by itself.

The change: such a leaf's first input wants a gradient, which nobody reads. The numbers stay what they are;
the backward computes one gradient more, for the first such leaf of the model only: what comes after it wants
one anyway.

Left alone: models without frozen weights; a leaf without trained weights; inputs that want a gradient;
evaluation; what is being compiled; a leaf that is called with keywords only, which torch's hooks do not see.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/4966
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.compiling import compiling
from .._shared.zero3_leaves import LEAF, MODULE, look_at_register, register


def look(code: Code) -> str | None:
    """ZeRO-3 must know leaves and put its hooks on one module at a time."""
    if "z3_leaf_module" not in code.source:
        return "this ZeRO-3 knows no leaf modules"
    look_at_register(code)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Put our hook on a leaf before DeepSpeed puts its own there: they see the inputs that ours returns."""
    offload = module.DeepSpeedZeRoOffload
    tracing = compiling()

    def before_leaf(leaf: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return None if tracing() else wanting(leaf, inputs)

    def put_hooks(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
        sub_module = MODULE.of(args, kwargs)
        if getattr(sub_module, LEAF, False) and any(not p.requires_grad for p in self.module.parameters()):
            patch.hook(sub_module.register_forward_pre_hook, before_leaf)
        original(self, *args, **kwargs)

    patch.wrap(offload, register(offload), put_hooks)


def wanting(leaf: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """``inputs`` with one that wants a gradient; None where they can stay as they are."""
    import torch

    tensors = [n for n, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    if not (torch.is_grad_enabled() and leaf.training) or any(inputs[n].requires_grad for n in tensors):
        return None
    number = next((n for n in tensors if inputs[n].is_floating_point()), None)
    if number is None or not any(p.requires_grad for p in leaf.parameters()):
        return None
    return (*inputs[:number], inputs[number].detach().requires_grad_(), *inputs[number + 1 :])
