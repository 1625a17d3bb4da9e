"""What a step costs: its time, what ZeRO-3 gathers in it and keeps, and a GPU's peak of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Meter:
    """Counts what ZeRO-3's coordinator gathers, and how much of the model is gathered at once.

    Args:
        model: partitioned by DeepSpeed.
        counting: whether to count; False where only time matters.
    """

    def __init__(self, model: Any, counting: bool = True) -> None:
        from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
        from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

        self.calls = self.elements = self.peak = 0
        self.named = dict(model.named_parameters())
        self.total = sum(parameter.ds_numel for parameter in self.named.values())
        self.absent = ZeroParamStatus.NOT_AVAILABLE
        if counting:
            name = "_PartitionedParameterCoordinator__all_gather_params_"
            gather = getattr(PartitionedParameterCoordinator, name)
            setattr(PartitionedParameterCoordinator, name, self._counted(gather))
        self.start()

    def _counted(self, gather: Callable[..., Any]) -> Callable[..., Any]:
        def call(coordinator: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
            fresh = sum(p.ds_numel for p in parameters if p.ds_status == self.absent)
            self.calls += bool(fresh)
            self.elements += fresh
            result = gather(coordinator, parameters, *args, **kwargs)
            self.peak = max(self.peak, self.live())
            return result

        return call

    def start(self) -> None:
        synchronize()
        self.calls = self.elements = self.peak = 0
        self.began = time.perf_counter()

    def stop(self) -> dict[str, Any]:
        synchronize()
        seconds = time.perf_counter() - self.began
        return {
            "calls": self.calls,
            "elements": self.elements,
            "total": self.total,
            "peak": self.peak,
            "seconds": seconds,
            "left": self.left(),
        }

    def live(self) -> int:
        return sum(p.ds_numel for p in self.named.values() if p.ds_status != self.absent)

    def left(self) -> list[str]:
        """What is still gathered, apart from what DeepSpeed never partitions."""
        return [name for name, p in self.named.items() if p.ds_status != self.absent and not p.ds_persist]


class Clock:
    """``Meter`` for engines that gather nothing."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        synchronize()
        self.began = time.perf_counter()

    def stop(self) -> dict[str, Any]:
        synchronize()
        return {"seconds": time.perf_counter() - self.began}


def synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
