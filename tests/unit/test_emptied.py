"""``zero_grad`` of a model drops what a ZeRO optimizer has, where that trains nothing else."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

emptied: Any = importlib.import_module("vlmpatch.patches._shared.emptied")


class Module:
    """torch's, as far as this goes."""

    def __init__(self, *parameters: object) -> None:
        self.held, self.zeroed = parameters, 0

    def parameters(self) -> Any:
        return iter(self.held)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.zeroed += 1


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parameters in two groups of an optimizer, the third of nobody, and what was dropped."""
    kind = type("Module", (Module,), {"zero_grad": Module.zero_grad})
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(nn=SimpleNamespace(Module=kind)))
    parameters = [object() for _ in range(3)]
    optimizer = SimpleNamespace(bit16_groups=[[parameters[0]], [parameters[1]]])
    known, dropped = [optimizer], list[Any]()
    emptied.at_zero_grad(api.Patch("zero-lost-backwards", Journal()), lambda: known, dropped.append)
    return SimpleNamespace(kind=kind, parameters=parameters, known=known, dropped=dropped)


def test_of_all_that_is_trained(trained: Any) -> None:
    model = trained.kind(*trained.parameters)
    model.zero_grad(set_to_none=False)
    assert (model.zeroed, trained.dropped) == (1, trained.known)


@pytest.mark.parametrize("held", [(0,), (0, 2), ()])
def test_of_a_part_it_is_not(trained: Any, held: tuple[int, ...]) -> None:
    model = trained.kind(*(trained.parameters[number] for number in held))
    model.zero_grad()
    assert (model.zeroed, trained.dropped) == (1, [])


def test_nothing_is_asked_where_no_optimizer_has_anything(trained: Any) -> None:
    trained.known.clear()
    model = trained.kind()
    model.parameters = None
    model.zero_grad()
    assert (model.zeroed, trained.dropped) == (1, [])
