"""ZeRO-3 hangs, in the forward or the backward, when ranks route tokens to different experts.

What the user sees: a hang before the first step is over (NCCL), ``collective mismatch`` (gloo), or steps tens
of times slower; Qwen2-MoE, Qwen3-MoE, Qwen3-VL's and InternVL3.5's and DeepSeek-VL2's language models.

Why: transformers before 5, and much repository code, make each expert a module of its own and call those that
tokens were routed to. ZeRO-3 gathers at each module call, and a gather takes every rank.

Every DeepSpeed; its remedy is ``set_z3_leaf_modules``, which has to be called with the block's class before
the engine is made (newer releases know some classes by name).

The change: blocks with a router and a list of experts, found by their structure, are marked as leaves when
ZeRO-3 is set up. A leaf is gathered and reduced as a whole, and an expert no token reached gets zeros. Blocks
inside a marked leaf, and models without such blocks, see no change.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/4966
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from ..transformers._sparse_blocks import sparse_blocks


def look(code: Code) -> str | None:
    """ZeRO-3 must take a module and know leaves."""
    function = code.function("DeepSpeedZeRoOffload.__init__")
    if function is None or function.parameters[:2] != ("self", "module"):
        raise Unrecognised("DeepSpeedZeRoOffload.__init__ does not take a module first")
    return None if "z3_leaf_module" in code.source else "this ZeRO-3 knows no leaf modules"


def apply(patch: Patch, module: ModuleType) -> None:
    """Mark the blocks before ZeRO-3 puts its hooks on them."""

    def with_leaves(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        inside: set[int] = set()
        for block in sparse_blocks(kwargs["module"] if "module" in kwargs else args[0]):
            if id(block) in inside or getattr(block, "_z3_leaf", None) is not None:
                continue
            inside.update(id(inner) for inner in block.modules())
            patch.replace(block, "_z3_leaf", True)
        return original(self, *args, **kwargs)

    patch.wrap(module.DeepSpeedZeRoOffload, "__init__", with_leaves)
