"""Random numbers that are drawn aside: nobody else's are others for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

_NOT_BY_DEVICE = ("cpu", "mps")  # fork_rng sees to the first in any case, the second has one generator in all


@contextlib.contextmanager
def drawn_aside(devices: Iterable[Any]) -> Iterator[None]:
    """Inside, numbers may be drawn; afterwards the CPU's and those of ``devices`` go on as if none were."""
    import torch

    by_kind: dict[str, set[Any]] = {}
    for device in devices:
        if device.type not in _NOT_BY_DEVICE and hasattr(getattr(torch, device.type, None), "get_rng_state"):
            by_kind.setdefault(device.type, set()).add(device)
    with contextlib.ExitStack() as aside:
        for kind, found in (by_kind or {"cuda": set()}).items():
            aside.enter_context(torch.random.fork_rng(devices=found, device_type=kind))
        yield
