"""Two streams of a GPU, simulated: reductions begin late, after what was let go of has been written to.

torch gives freed memory to the stream it belongs to at once, unless it was told (``record_stream``) that
another stream still uses it. Here each reduction finds what it would find if that stream were far behind: a
gradient that lies in no bucket, and that torch was not told of, has been written over; so has a bucket whose
reduction the backward did not wait for before it filled that bucket again.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch


class Stream:
    def __init__(self) -> None:
        self.waiting: set[int] = set()  # the memory whose reduction nobody has waited for

    def wait_stream(self, other: Stream) -> None:
        other.waiting.clear()


def memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def simulate(optimizer: Any) -> None:
    """Give ``optimizer``, of ZeRO-2, a stream for its reductions; for the rest of this process."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    backward, reductions = Stream(), Stream()
    kept: set[int] = set()  # the memory that torch was told of
    average = optimizer.average_tensor

    def average_tensor(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        large = tensor.numel() > optimizer.reduce_bucket_size
        if large:
            # What it tells torch, and when, is known from a copy: all that counts is told before it returns.
            kept.clear()
            average(copy := tensor.clone(), *args, **kwargs)
            if memory(copy) not in kept:
                tensor.fill_(1.0)
        elif memory(tensor) in reductions.waiting:
            tensor.fill_(1.0)
        result = average(tensor, *args, **kwargs)
        reductions.waiting.add(memory(tensor))
        return result

    def record_stream(self: torch.Tensor, stream: Stream) -> None:
        kept.add(memory(self))

    torch.Tensor.record_stream = record_stream
    orders = "resolves_data_dependency"  # since DeepSpeed 0.14.0
    setattr(accelerator, orders if hasattr(accelerator, orders) else "is_synchronized_device", lambda: False)
    accelerator.current_stream = lambda: backward
    accelerator.stream = contextlib.nullcontext
    accelerator.synchronize = lambda *_: reductions.waiting.clear()
    optimizer.reduction_stream = reductions
    optimizer.average_tensor = average_tensor
