"""Which modules can be a leaf of ZeRO-3, as far as their code and that of what holds them says."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest

leaves: Any = importlib.import_module("vlmpatch.patches._shared.zero3_leaves")


class Module:
    """As torch's: parts by name."""

    def __init__(self, **parts: Any) -> None:
        self._modules = parts
        vars(self).update(parts)

    def get_submodule(self, name: str) -> Any:
        found: Any = self
        for part in name.split(".") if name else ():
            found = found._modules[part]
        return found


class Lazy:
    """As a package of which a part cannot be imported."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"Failed to import {name}")


lazy = Lazy()


@dataclasses.dataclass
class Result:
    hidden: Any


class Routed(Module):
    def forward(self, states: Any) -> Any:
        return self.mixed(states), states

    def mixed(self, states: Any) -> Any:
        return self.gate(states)  # type: ignore[attr-defined]


class ByNames(Module):
    def forward(self, *, states: Any) -> Any:
        return states


class OfAClass(Routed):
    def forward(self, states: Any) -> Any:
        result = Result(hidden=states)
        return result


class OfAPackage(Routed):
    def forward(self, states: Any) -> Any:
        return lazy.function(states)


class OfADictionary(Routed):
    def forward(self, states: Any) -> Any:
        return self.made(states)

    def made(self, states: Any) -> Any:
        return {"hidden": states}


class BesideADictionary(Routed):
    def forward(self, states: Any) -> Any:
        return states, {"logits": states}


class Layer(Module):
    def forward(self, states: Any) -> Any:
        return self.block(states)  # type: ignore[attr-defined]


class Net(Module):
    def forward(self, states: Any) -> Any:
        return self.layer(states)  # type: ignore[attr-defined]

    def initialise(self) -> None:
        self.layer.block.gate.reset()  # type: ignore[attr-defined]


class AsksAPart(Net):
    def forward(self, states: Any) -> Any:
        return self.layer(states), self.layer.block.gate(states)  # type: ignore[attr-defined]


class AsksAMethod(Net):
    def forward(self, states: Any) -> Any:
        return self.other(states)

    def other(self, states: Any) -> Any:
        return self.layer.block.mixed(states)  # type: ignore[attr-defined]


class PastItsCall(Net):
    def forward(self, states: Any) -> Any:
        return self.layer.block.forward(states)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("around", "block", "fits"),
    [
        (Net, Routed, True),
        (Net, ByNames, False),
        (Net, OfAClass, False),
        (Net, OfAPackage, True),
        (Net, OfADictionary, False),
        (Net, BesideADictionary, False),
        (AsksAPart, Routed, False),
        (AsksAMethod, Routed, False),
        (PastItsCall, Routed, False),
    ],
)
def test_what_can_be_a_leaf(around: Any, block: Any, fits: bool) -> None:
    net = around(layer=Layer(block=block(gate=Module())))
    assert leaves.may_be_leaf(net, "layer.block") is fits
    assert leaves.may_be_leaf(net.layer.block, "") is (fits or around is not Net)


class Writes(Routed):
    def forward(self, states: Any) -> Any:
        states *= 2
        return states


class WritesByName(Routed):
    def forward(self, states: Any) -> Any:
        return states.mul_(2)


class WritesElsewhere(Routed):
    def forward(self, states: Any) -> Any:
        found = states.type_as(states)
        found += 1
        return states.__len__, found


@pytest.mark.parametrize(("cls", "writes"), [(Writes, True), (WritesByName, True), (WritesElsewhere, False)])
def test_what_writes_into_its_input(cls: Any, writes: bool) -> None:
    assert bool(leaves.writes_into_input(cls())) is writes


def test_keywords_take_their_places() -> None:
    module = Routed()
    assert leaves.by_place(module, (), {"states": 1}) == ((1,), {})
    assert leaves.by_place(ByNames(), (), {"states": 1}) == ((), {"states": 1})
    assert leaves.by_place(module, (), {"other": 1}) == ((), {"other": 1})
