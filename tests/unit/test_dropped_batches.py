"""Which ``zero_grad`` drops what lies in ZeRO-3's partitions; the sums themselves are proven in real runs."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

patch: Any = importlib.import_module("vlmpatch.patches.deepspeed.zero3_dropped_batches")


class Optimizer:
    """ZeRO-3's, as far as this goes."""

    def __init__(self, boundary: Any = True) -> None:
        self.is_gradient_accumulation_boundary = boundary
        self.began = 0

    def zero_grad(self, *, set_to_none: bool) -> None:
        self.began += not set_to_none


def backward(optimizer: Any) -> None:
    patch.epilogue(lambda self: None, optimizer)


def began(optimizer: Any) -> int:
    """How often its window began anew once the engine's ``zero_grad`` is over."""
    patch.zero_grad_of_engine(lambda self: None, SimpleNamespace(optimizer=optimizer))
    return int(optimizer.began)


@pytest.mark.parametrize("boundary", [True, lambda: True])
def test_what_ended_a_window_is_dropped(boundary: Any) -> None:
    optimizer = Optimizer(boundary)
    backward(optimizer)
    assert began(optimizer) == 1


@pytest.mark.parametrize("boundary", [False, lambda: False])
def test_within_a_window_nothing_is(boundary: Any) -> None:
    optimizer = Optimizer(boundary)
    backward(optimizer)
    assert began(optimizer) == 0


def test_after_a_step_or_the_optimizers_own_nothing_is() -> None:
    optimizer = Optimizer()
    backward(optimizer)
    patch.is_over(lambda self: None, optimizer)
    assert began(optimizer) == 0


def test_zenflow_and_other_optimizers_are_left_alone() -> None:
    optimizer: Any = Optimizer()
    optimizer.zenflow = True
    backward(optimizer)
    assert began(optimizer) == 0
    assert began(Optimizer()) == 0
