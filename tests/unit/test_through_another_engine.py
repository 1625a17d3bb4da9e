"""Which engines begin a backward of their own when one passes through what they returned."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

patch: Any = importlib.import_module("vlmpatch.patches.deepspeed.zero_through_another_engine")


def begins(optimizer: Any, running: bool = False) -> bool:
    engine = SimpleNamespace(optimizer=optimizer, _running_engine_backward=running)
    begun: list[Any] = []
    patch.prologue(begun.append, engine)
    return begun == [engine]


def groups(*trained: bool) -> list[list[Any]]:
    return [[SimpleNamespace(requires_grad=each) for each in trained]]


@pytest.mark.parametrize("name", ["bit16_groups", "fp16_groups"])
def test_one_of_which_nothing_is_trained_begins_none(name: str) -> None:
    assert not begins(SimpleNamespace(**{name: groups(False, False)}))
    assert begins(SimpleNamespace(**{name: groups(False, True)}))


def test_one_that_is_told_to_begins() -> None:
    assert begins(SimpleNamespace(bit16_groups=groups(False)), running=True)


def test_an_optimizer_of_another_kind_begins() -> None:
    assert begins(None)
