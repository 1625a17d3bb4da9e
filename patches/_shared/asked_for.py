"""The run of autograd in which gradients were asked for through a DeepSpeed engine, and no backward began."""

from __future__ import annotations

_latest = [-2]  # by autograd's number, which is -1 outside of any


def note() -> None:
    """It is the one that runs."""
    _latest[0] = _task()


def is_noted() -> bool:
    """Whether it is."""
    return _task() == _latest[0]


def _task() -> int:
    import torch

    return int(torch._C._current_graph_task_id())
