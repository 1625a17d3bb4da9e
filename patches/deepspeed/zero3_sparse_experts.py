"""ZeRO-3 hangs, in the forward or the backward, when ranks route tokens to different experts.

What the user sees: a hang in the first step (NCCL), ``collective mismatch``, a ``disagreement`` between ranks
or an abort (gloo). Seen with DeepSeek-V3 and GLM-4.5V; the code of DeepSeek-V2, GLM-4.5, Qwen3-Omni and more
before transformers 5 is the same.

Why: such a block calls those of its experts that tokens were routed to, each a module of its own. ZeRO-3
gathers at each module call, and a gather takes every rank. Where all experts are one parameter, as in
Qwen3-VL-MoE, a loop over those that were hit still calls the activation once an expert; ZeRO-3 has hooks on
it too, though it gathers nothing there, and compares what every rank called in the first step.

Every DeepSpeed. Its remedy for the first is ``set_z3_leaf_modules``, called with the block's class before the
engine is made; DeepSpeed 0.18 calls it by itself for Mixtral, Qwen2-MoE and Qwen3-MoE, by name.

The change: blocks with a router, a list of experts and code that may pass one over are told to DeepSpeed as
leaves when ZeRO-3 is set up, by that very function. A leaf is gathered and reduced as a whole, and an expert
no token reached gets zeros. It holds a block's experts at once, which is what the remedy costs. Where experts
are one parameter, the parts that have none get no hooks.

Left alone: blocks whose experts are all called, if with no token (Mixtral before 4.52, DeepSeek's repository
code in training); what is a leaf already, inside one, or was said not to be one; models without such blocks;
blocks that cannot be a leaf: one of which a part or another method is called from outside of it, that returns
a dictionary or an object that holds its tensors, or takes all by keyword only; experts that are networks.
An undo leaves the engines that are running as they are: a leaf's parts have no hooks of their own.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/4966
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakSet

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.sparse_experts import are_networks, idle_parts, skipping, sparse_blocks, stacked_experts
from .._shared.zero3_leaves import (
    LEAF,
    MODULE,
    look_at_register,
    may_be_leaf,
    ours,
    register,
    writes_into_input,
)


def look(code: Code) -> str | None:
    """ZeRO-3 must take a module and know leaves."""
    function = code.function("DeepSpeedZeRoOffload.__init__")
    if function is None or function.parameters[:2] != ("self", "module"):
        raise Unrecognised("DeepSpeedZeRoOffload.__init__ does not take a module first")
    look_at_register(code)
    return None if "z3_leaf_module" in code.source else "this ZeRO-3 knows no leaf modules"


def apply(patch: Patch, module: ModuleType) -> None:
    """Tell DeepSpeed before it puts its hooks on the modules."""
    from deepspeed.utils import set_z3_leaf_modules

    unhooked: WeakSet[Any] = WeakSet()

    def set_up(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        model = MODULE.of(args, kwargs)
        for block in skipping_blocks(model):
            set_z3_leaf_modules(block, [type(block)])
            ours.add(block)
            if writes_into_input(block):
                patch.wrap(type(block), "forward", with_a_copy)
        for experts in skipping(stacked_experts(model)):
            unhooked.update(idle_parts(experts))
        return original(self, *args, **kwargs)

    def put_hooks(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
        if MODULE.of(args, kwargs) not in unhooked:
            original(self, *args, **kwargs)

    offload = module.DeepSpeedZeRoOffload
    patch.wrap(offload, "__init__", set_up)
    patch.wrap(offload, register(offload), put_hooks)


def with_a_copy(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around a forward that writes into its input, which torch forbids where a module has a backward hook."""
    tensor = sys.modules["torch"].Tensor
    if self in ours and args and isinstance(args[0], tensor) and args[0].requires_grad:
        args = (args[0].clone(), *args[1:])
    return original(self, *args, **kwargs)


def skipping_blocks(model: Any) -> Iterator[Any]:
    """The outermost blocks of ``model`` that may skip experts and of which nobody has decided."""
    settled = {inner for leaf in model.modules() if getattr(leaf, LEAF, False) for inner in leaf.modules()}
    names = {module: name for name, module in model.named_modules()}
    for block in skipping(sparse_blocks(model)):
        if block in settled or hasattr(block, LEAF) or are_networks(block):
            continue
        if may_be_leaf(model, names[block]):
            settled.update(block.modules())
            yield block
