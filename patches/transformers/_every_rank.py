"""What ranks have to do together: which engine waits for whom, and one small number agreed on."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


def ranks() -> int:
    """How many processes train together; 1 without torch.distributed."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 1
    count: int = dist.get_world_size()
    return count


def waiting_groups(modules: Iterable[Any]) -> list[Any]:
    """The process groups whose ranks gather the weights of ``modules`` together; empty where none do.

    ZeRO-3 gathers in the forward of each module, unless its hooks were taken off (TRL generates with the
    whole model gathered, and then each rank goes its own way). FSDP gathers in the forward of each module
    it was told to wrap; what belongs to the root only is gathered before any of it.
    """
    for module in modules:
        flattened = False
        for parameter in module.parameters():
            if hasattr(parameter, "ds_process_group"):
                return [parameter.ds_process_group] if _deepspeed_hooks(module) else []
            if hasattr(parameter, "device_mesh"):
                return list(parameter.device_mesh.get_all_groups())
            flattened = flattened or hasattr(parameter, "_fsdp_flattened")
        if flattened and (group := _fsdp_group(module)) is not None:
            return [group]
    return []


def largest(number: int, groups: Iterable[Any], device: Any) -> int:
    """The largest ``number`` of all ranks of ``groups``: one all-reduce of one integer for each."""
    import torch
    import torch.distributed as dist

    agreed = torch.tensor(number, device=device)
    for group in groups:
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=group)
    return int(agreed.item())


def finding_unused() -> Any:
    """The DDP whose forward runs, if it looks for unused parameters itself."""
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    cls = getattr(parallel, "DistributedDataParallel", None)
    ddp = getattr(cls, "_active_ddp_module", None)
    return ddp if ddp is not None and ddp.find_unused_parameters and not ddp.static_graph else None


def _deepspeed_hooks(module: Any) -> bool:
    hooks = module._forward_pre_hooks.values()
    return any(getattr(hook, "__module__", "").startswith("deepspeed.") for hook in hooks)


def _fsdp_group(module: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = (inner for inner in module.modules() if isinstance(inner, FullyShardedDataParallel))
    return next((inner.process_group for inner in wrapped), None)
