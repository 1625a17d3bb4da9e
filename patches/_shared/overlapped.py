"""ZeRO's reductions on a stream of their own."""

from __future__ import annotations

from typing import Any


def apart(optimizer: Any, accelerator: Any) -> bool:
    """Whether ``optimizer``, of ZeRO-1 or ZeRO-2, reduces on another stream than the backward's.

    Args:
        optimizer: a ``DeepSpeedZeroOptimizer``.
        accelerator: what DeepSpeed's ``get_accelerator`` gives; it has had the first name since 0.14.0.
    """
    orders = getattr(accelerator, "resolves_data_dependency", None) or accelerator.is_synchronized_device
    return bool(optimizer.overlap_comm) and not orders()
