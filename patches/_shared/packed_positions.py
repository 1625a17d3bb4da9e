"""Positions of rows that were packed behind one another."""

from __future__ import annotations

from typing import Any


def begin_again(positions: Any) -> bool:
    """Whether rows are packed behind one another, each beginning at 0.

    Args:
        positions: of shape [batch, length].
    """
    import torch

    if not readable(positions):
        return False
    with torch._C.DisableTorchFunction():  # a mode of a script's may count what it sees
        if positions.dim() != 2 or positions.shape[1] < 2:
            return False
        before, after = positions[:, :-1], positions[:, 1:]
        breaks = after - before != 1
        at_zero = breaks & (after == 0)
        packed: bool = ((at_zero & (before > 0)).any() & (breaks == at_zero).all()).item()
    return packed


def readable(tensor: Any) -> bool:
    """Whether it has numbers, and no transform, no tracer and no mode of a script's looks on.

    On the meta device and in FakeTensorMode there are none; under vmap and while a CUDA graph is captured a
    look is an error, under a tracer a part of what is traced.
    """
    import torch

    if type(tensor) is not torch.Tensor or torch._C._len_torch_dispatch_stack():
        return False
    with torch._C.DisableTorchFunction():
        if tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return False
        return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
