"""Two streams of a GPU, simulated: reductions begin late, after what was let go of has been written to.

torch gives freed memory to the stream it belongs to at once, unless it was told (``record_stream``) that
another stream still uses it. Here each reduction finds what it would find if that stream were far behind: a
gradient that lies in no bucket, and that torch was not told of, has been written over.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch


class Stream:
    def wait_stream(self, other: Stream) -> None:
        """Nothing runs apart from what calls."""


def simulate(optimizer: Any) -> None:
    """Give ``optimizer``, of ZeRO-2, a stream for its reductions; for the rest of this process."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    backward, reductions = Stream(), Stream()
    kept: set[int] = set()  # the memory that torch was told of
    average = optimizer.average_tensor

    def average_tensor(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.numel() > optimizer.reduce_bucket_size:
            # What it tells torch, and when, is known from a copy: all that counts is told before it returns.
            kept.clear()
            average(copy := tensor.clone(), *args, **kwargs)
            if copy.untyped_storage().data_ptr() not in kept:
                tensor.fill_(1.0)
        return average(tensor, *args, **kwargs)

    def record_stream(self: torch.Tensor, stream: Stream) -> None:
        kept.add(self.untyped_storage().data_ptr())

    torch.Tensor.record_stream = record_stream
    accelerator.resolves_data_dependency = lambda: False
    accelerator.current_stream = lambda: backward
    accelerator.stream = contextlib.nullcontext
    optimizer.reduction_stream = reductions
    optimizer.average_tensor = average_tensor
