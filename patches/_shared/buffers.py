"""Buffers that a tower changes as it runs, such as the running means of a ``BatchNorm``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def kept_buffers(modules: Iterable[Any]) -> Iterator[list[Any]]:
    """Inside, the buffers of ``modules`` may change; afterwards they are as they were.

    Yields:
        A list that holds those that did change, once that is over.
    """
    changed: list[Any] = []
    before = _values(buffer for module in modules for buffer in module.buffers())
    try:
        yield changed
    finally:
        changed += _put_back(before)


def keep_in_backward(buffers: list[Any]) -> None:
    """Called in a backward: to its end they may change, as a recomputation changes them once more."""
    if not buffers:
        return
    import torch

    before = _values(buffers)
    torch.autograd.Variable._execution_engine.queue_callback(lambda: _put_back(before))


def _values(buffers: Iterable[Any]) -> list[tuple[Any, Any]]:
    return [(buffer, buffer.clone()) for buffer in buffers]


def _put_back(before: list[tuple[Any, Any]]) -> list[Any]:
    import torch

    changed = [(buffer, value) for buffer, value in before if not torch.equal(buffer, value)]
    for buffer, value in changed:
        buffer.data.copy_(value)
    return [buffer for buffer, _ in changed]
