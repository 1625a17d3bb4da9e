"""Buffers that a checkpoint has: those that are not marked as made anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

UNSAVED = "_non_persistent_buffers_set"  # torch's, of a module


def saved_buffers(model: Any) -> Iterator[tuple[str, Any]]:
    """The buffers that a checkpoint of ``model`` has, by their names there."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in getattr(module, UNSAVED):
                yield f"{prefix}.{name}" if prefix else name, buffer
