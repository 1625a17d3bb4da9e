"""What a forward computes in: on a GPU runs in 16 bits differ, and in float16 small gradients become zero."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def looking(model: Any) -> Iterator[set[Any]]:
    """Inside, the types that the parts of ``model`` compute in when they are called are noted in the set."""
    import torch

    parts, kinds = {*model.modules()}, {parameter.device.type for parameter in model.parameters()}
    seen = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}

    def look(module: Any, args: Any) -> None:
        if module in parts:
            seen.update(filter(None, map(_cast_to, kinds)))

    # Of every module: it may be a part alone that is autocast, or the model's own forward that does it.
    handle = torch.nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def is_low(dtype: Any) -> bool:
    """Whether a type of floating-point numbers has 16 bits or fewer."""
    return bool(dtype.itemsize <= 2)


def _cast_to(kind: str) -> Any:
    """What autocast makes of what is computed on a device of ``kind``; None where it is off."""
    import torch

    if hasattr(torch, "get_autocast_dtype"):  # from torch 2.4 on
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
