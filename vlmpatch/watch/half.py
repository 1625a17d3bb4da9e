"""Whether a forward computes in float16, whose gradients become zero where the loss is not scaled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class Seen:
    """What a forward was seen to compute in."""

    half = False


@contextlib.contextmanager
def looking(model: Any) -> Iterator[Seen]:
    """Inside, what the parts of ``model`` compute in when they are called is seen."""
    import torch

    seen, parts = Seen(), {*model.modules()}
    kinds = {parameter.device.type for parameter in model.parameters()}
    seen.half = any(parameter.dtype is torch.float16 for parameter in model.parameters())

    def look(module: Any, args: Any) -> None:
        if module in parts and any(_cast_to(kind) is torch.float16 for kind in kinds):
            seen.half = True

    # Of every module: it may be a part alone that is autocast, or the model's own forward that does it.
    handle = torch.nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def _cast_to(kind: str) -> Any:
    """What autocast makes of what is computed on a device of ``kind``; None where it is off."""
    import torch

    if hasattr(torch, "get_autocast_dtype"):  # from torch 2.4 on
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
