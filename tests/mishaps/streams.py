"""Two streams of a GPU, simulated: reductions begin late, after what was let go of has been written to.

torch gives freed memory to the stream it belongs to at once, unless it was told (``record_stream``) that
another stream still uses it. Here each reduction finds what it would find if that stream were far behind: a
gradient that lies in no bucket, and that torch was not told of, has been written over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
    reduced: list[torch.Tensor] = []  # what the reduction that begins now reads
    average = optimizer.average_tensor

    def average_tensor(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        reduced[:] = [tensor]
        return average(tensor, *args, **kwargs)

    @contextlib.contextmanager
    def on(stream: Stream) -> Iterator[None]:
        for tensor in reduced if stream is reductions else ():
            known = tensor.untyped_storage().data_ptr() in kept
            if tensor.numel() > optimizer.reduce_bucket_size and not known:
                tensor.fill_(1.0)
        reduced.clear()
        yield

    def record_stream(self: torch.Tensor, stream: Stream) -> None:
        kept.add(self.untyped_storage().data_ptr())

    torch.Tensor.record_stream = record_stream
    accelerator.resolves_data_dependency = lambda: False
    accelerator.current_stream = lambda: backward
    accelerator.stream = on
    optimizer.reduction_stream = reductions
    optimizer.average_tensor = average_tensor
