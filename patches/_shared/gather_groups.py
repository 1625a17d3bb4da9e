"""Which ranks gather weights together, under ZeRO-3 and FSDP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


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


def _deepspeed_hooks(module: Any) -> bool:
    hooks = module._forward_pre_hooks.values()
    return any(getattr(hook, "__module__", "").startswith("deepspeed.") for hook in hooks)


def _fsdp_group(module: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = (inner for inner in module.modules() if isinstance(inner, FullyShardedDataParallel))
    return next((inner.process_group for inner in wrapped), None)
