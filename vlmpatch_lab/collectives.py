"""Makes asynchronous collectives wait before they return, as ZeRO-3 over gloo needs.

ZeRO-3 waits for the last of several gathers, which one CUDA stream makes enough; over gloo it is a data
race in DeepSpeed that has nothing to do with what is tested here.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

NAMES = (
    *("all_gather", "all_gather_into_tensor", "all_reduce", "broadcast", "reduce"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all_single"),
)


def wait_for_every_collective(like_nccl: bool = False) -> None:
    """Replace torch's collectives in this process.

    Args:
        like_nccl: two different collectives that meet wait for ever, where gloo ends the process.
    """
    meet = _Meeting() if like_nccl else None
    for name in NAMES:
        if hasattr(dist, name):
            setattr(dist, name, _waiting(name, getattr(dist, name), meet))


def _waiting(name: str, collective: Callable[..., Any], meet: _Meeting | None) -> Callable[..., Any]:
    signature = inspect.signature(collective)

    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        if meet is not None:
            sizes = [a.numel() for a in (*args, *kwargs.values()) if hasattr(a, "numel")]
            meet(f"{name} of {sizes}")
        asked = signature.bind(*args, **kwargs)
        later = asked.arguments.pop("async_op", False)
        done = collective(*asked.args, **asked.kwargs)
        return _Done(asked.args[0]) if later else done

    return call


class _Done:
    """The work of a collective that is over."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        """As hooks of DDP chain what comes next: of the one tensor of an all-reduce, in a list."""
        future: Any = torch.futures.Future()
        future.set_result([self.tensor])
        return future


class _Meeting:
    """Waits, for ever if need be, until every rank comes with the same collective."""

    def __init__(self) -> None:
        self.numbers = itertools.count()

    def __call__(self, what: str) -> None:
        store, number = dist.distributed_c10d._get_default_store(), next(self.numbers)
        store.set(f"collective {number} {dist.get_rank()}", what)
        others = [store.get(f"collective {number} {rank}") for rank in range(dist.get_world_size())]
        while len(set(others)) > 1:
            time.sleep(1)
