"""A loader without its first batches counts its epochs as the one that it was made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlmpatch.api import Argument

NAME, LOADER = "skip_first_batches", Argument(0, "dataloader")
COUNT, TOLD = "iteration", "set_epoch"


def skipping(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Around ``skip_first_batches``, which makes a loader that begins at epoch 0."""
    begun = getattr(LOADER.of(args, kwargs), COUNT, 0)
    found = original(*args, **kwargs)
    if begun and getattr(found, COUNT, None) == 0 and hasattr(found, TOLD):
        found.set_epoch(begun)
    return found
