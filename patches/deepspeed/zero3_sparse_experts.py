"""ZeRO-3 hangs, in the forward or the backward, when ranks route tokens to different experts.

What the user sees: a hang in the first step (NCCL), ``collective mismatch``, a ``disagreement`` between ranks
or an abort (gloo). Seen with DeepSeek-V3 and GLM-4.5V; the code of DeepSeek-V2, GLM-4.5, Qwen3-Omni and more
before transformers 5 is the same.

Why: such a block calls those of its experts that tokens were routed to, each a module of its own. ZeRO-3
gathers at each module call, and a gather takes every rank.

Every DeepSpeed. Its remedy is ``set_z3_leaf_modules``, called with the block's class before the engine is
made. DeepSpeed 0.18 calls it by itself for Mixtral, Qwen2-MoE and Qwen3-MoE, by name. From transformers 5 on
experts are one parameter for all of them, and nothing is skipped.

The change: blocks with a router, a list of experts and code that may pass one over are told to DeepSpeed as
leaves when ZeRO-3 is set up, by that very function. A leaf is gathered and reduced as a whole, and an expert
no token reached gets zeros. It holds a block's experts at once, which is what the remedy costs.

Left alone: blocks whose experts are all called, if with no token (Mixtral before 4.52, DeepSeek's repository
code in training); what is a leaf already, inside one, or was said not to be one; models without such blocks.
An undo leaves the engines that are running as they are: a leaf's parts have no hooks of their own.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/4966
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from ..transformers._sparse_blocks import skips_experts, sparse_blocks

LEAF = "_z3_leaf"


def look(code: Code) -> str | None:
    """ZeRO-3 must take a module and know leaves."""
    function = code.function("DeepSpeedZeRoOffload.__init__")
    if function is None or function.parameters[:2] != ("self", "module"):
        raise Unrecognised("DeepSpeedZeRoOffload.__init__ does not take a module first")
    return None if "z3_leaf_module" in code.source else "this ZeRO-3 knows no leaf modules"


def apply(patch: Patch, module: ModuleType) -> None:
    """Tell DeepSpeed before it puts its hooks on the modules."""
    from deepspeed.utils import set_z3_leaf_modules

    def with_leaves(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        for block in skipping_blocks(kwargs["module"] if "module" in kwargs else args[0]):
            set_z3_leaf_modules(block, [type(block)])
        return original(self, *args, **kwargs)

    patch.wrap(module.DeepSpeedZeRoOffload, "__init__", with_leaves)


def skipping_blocks(model: Any) -> Iterator[Any]:
    """The outermost blocks of ``model`` that may skip experts and of which nobody has decided."""
    settled = {inner for leaf in model.modules() if getattr(leaf, LEAF, False) for inner in leaf.modules()}
    skips: dict[type, bool] = {}
    for block in sparse_blocks(model):
        kind = type(block)
        if kind not in skips:
            skips[kind] = skips_experts(block)
        if skips[kind] and block not in settled and not hasattr(block, LEAF):
            settled.update(block.modules())
            yield block
