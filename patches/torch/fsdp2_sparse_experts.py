"""FSDP2 fails, or hangs, when ranks route tokens to different experts.

What the user sees: a hang in the first backward (NCCL), or gloo's abort, with a mixture of experts whose
experts are a module each: before transformers 5 Qwen3-MoE, DeepSeek-V3, Qwen3-Omni.

Why: after a block's backward FSDP2 reduces the gradients that are there, in one reduce-scatter. An expert
that no token of this rank reached has none, and ranks reduce tensors of different sizes.

Since torch 2.6, whose ``fully_shard`` it is; 2.15 has it still. From 2.13 on torch has a setting against it,
``model.set_reduce_scatter_unused_params(True)``, which has to be asked for.

The change: before a block is reduced, ranks agree in one small all-reduce on which parameters of its sparse
blocks have a gradient somewhere, and those that have none here get zeros. An expert that no rank used has
none anywhere, as under DDP, and the optimizer passes over it; torch's own setting would give it zeros.

Left alone: parameters outside such blocks; blocks that call every expert, if with no token; experts that are
one parameter; windows that do not reduce (``set_requires_gradient_sync(False)``); frozen weights; what is
compiled; what other replicas use, where a window ends without a reduction between them
(``set_requires_all_reduce(False)``). An expert that is an FSDP unit of its own is gathered by those ranks
alone that call it, which nothing here fixes: shard the block, or the layer.

Upstream: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from vlmpatch.api import Code, Patch, Unrecognised, assign

from .._shared.compiling import compiling
from .._shared.sparse_experts import skipping, sparse_blocks

GROUP = "FSDPParamGroup"
PICKS = ("_get_unsharded_grad_to_reduce", "post_backward")  # from torch 2.15 on, and before
SUM = "unsharded_accumulated_grad"  # until 2.14: of backwards that did not reduce, in the reduced dtype


def look(code: Code) -> str | None:
    """A group must reduce the gradients that are there."""
    functions = [code.function(f"{GROUP}.{name}") for name in PICKS]
    if not any(function and "unsharded_param.grad is not None" in function for function in functions):
        raise Unrecognised(f"{GROUP}.post_backward in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Fill in before a group is reduced."""
    known: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
    tracing = compiling()

    def post_backward(original: Callable[..., Any], self: Any, /, *unused: Any) -> Any:
        begun = self._training_state is module.TrainingState.PRE_BACKWARD
        if begun and self.reduce_grads and not tracing():
            if self not in known:
                known[self] = of_experts(self)
            fill(self, [param for param in known[self] if _trained(param)])
        return original(self, *unused)

    patch.wrap(module.FSDPParamGroup, "post_backward", post_backward)


def of_experts(group: Any) -> list[Any]:
    """Those of a group's parameters that lie in a sparse block."""
    blocks = [block for module in group.modules for block in skipping(sparse_blocks(module))]
    inside = {part for block in blocks for part in block.modules()}
    return [param for param in group.fsdp_params if param._module_info.module in inside]


def _trained(param: Any) -> bool:
    return hasattr(param, "_unsharded_param") and param.unsharded_param.requires_grad


def fill(group: Any, params: list[Any]) -> None:
    """Give zeros, in the dtype that is reduced, to those of ``params`` that have a gradient elsewhere."""
    if not params:
        return
    sums = (getattr(param, SUM) for param in group.fsdp_params if not _leaf_sums(param))
    kept = next((gradient for gradient in sums if gradient is not None), None)
    here = [_has_gradient(param) for param in params]
    for param, has, anywhere in zip(params, here, somewhere(group, here), strict=True):
        if anywhere and not has:
            _give_zeros(param, kept)


def _give_zeros(param: Any, kept: Any) -> None:
    """Where a gradient of ``param`` would be; ``kept`` is a sum that another parameter of its group has."""
    import torch

    leaf = param.unsharded_param
    if kept is None:
        dtype = leaf.grad_dtype if _leaf_sums(param) else None
        assign(leaf, "grad", torch.zeros_like(leaf, dtype=dtype))
    else:
        assign(param, SUM, torch.zeros_like(leaf, dtype=kept.dtype))


def _leaf_sums(param: Any) -> bool:
    """Whether gradients of several backwards are summed in the leaf itself, as from torch 2.15 on."""
    return isinstance(getattr(type(param), SUM, None), property)


def _has_gradient(param: Any) -> bool:
    return getattr(param, SUM) is not None or param.unsharded_param.grad is not None


def somewhere(group: Any, here: list[bool]) -> list[bool]:
    """Of each flag, whether it is set on any rank that reduces with this one."""
    import torch
    import torch.distributed as dist

    flags = torch.tensor(here, dtype=torch.int32, device=group.device)
    for ranks in reducing(group):
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=ranks)
    return [bool(flag) for flag in flags.tolist()]


def reducing(group: Any) -> list[Any]:
    """The process groups in which ``group`` is reduced now.

    Replicas come to the end of a window (``set_requires_all_reduce``) together, and not before.
    """
    names = ("shard_process_group", *(("replicate_process_group",) if group.all_reduce_grads else ()))
    found = (getattr(group.mesh_info, name, None) for name in names)
    return [ranks for ranks in found if ranks is not None]
