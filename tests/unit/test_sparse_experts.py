"""Which sparse blocks may pass over an expert, as far as their code says."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

blocks: Any = importlib.import_module("vlmpatch.patches._shared.sparse_experts")


class Block:
    """What all of them have."""

    experts: Any = ()
    num_experts = 8

    def __init__(self) -> None:
        for expert in self.experts:
            if expert is None:
                raise ValueError


class OnlyThoseHit(Block):
    def forward(self, states: Any, mask: Any) -> Any:
        hit = mask.sum().nonzero()
        for index in hit:
            states = self.experts[index](states)
        return states


class AskedOneByOne(Block):
    def moe(self, states: Any, mask: Any) -> Any:
        for index in range(self.num_experts):
            if mask[index].numel() > 0:
                states = self.experts[index](states)
        return states

    def forward(self, states: Any, mask: Any) -> Any:
        return self.moe(states, mask)


class PassedOver(Block):
    def forward(self, states: Any, counts: Any) -> Any:
        for count, expert in zip(counts, self.experts, strict=True):
            if count == 0:
                continue
            states = expert(states)
        return states


class Stacked(Block):
    """One parameter for all, as in Qwen3-VL-MoE."""

    def forward(self, states: Any, mask: Any) -> Any:
        expert_hit = mask.sum().nonzero()
        for expert_idx in expert_hit:
            states = self.activation(states @ self.weight[expert_idx])  # type: ignore[attr-defined]
        return states


class Inherits(PassedOver):
    """Nothing of its own."""


class AllCalled(Block):
    def forward(self, states: Any, mask: Any) -> Any:
        if mask is None:
            mask = states
        for index in range(self.num_experts):
            states = self.experts[index](states[mask[index]])
        return states


class Soft(Block):
    def forward(self, states: Any, weights: Any) -> Any:
        return sum(weight * expert(states) for weight, expert in zip(weights, self.experts, strict=True))


def no_grad(function: Any) -> Any:
    return function


class SkipsInEvaluation(AllCalled):
    """DeepSeek's repository code."""

    @no_grad
    def infer(self, states: Any, counts: Any) -> Any:
        for count, expert in zip(counts, self.experts, strict=True):
            if count:
                states = expert(states)
        return states


class Overridden(PassedOver):
    def forward(self, states: Any, counts: Any) -> Any:
        for expert in self.experts:
            states = expert(states)
        return states


@pytest.mark.parametrize("cls", [OnlyThoseHit, AskedOneByOne, PassedOver, Stacked, Inherits])
def test_a_block_that_may_pass_over_an_expert(cls: type) -> None:
    assert blocks.skips_experts(cls())


@pytest.mark.parametrize("cls", [AllCalled, Soft, SkipsInEvaluation, Overridden])
def test_a_block_that_calls_every_expert(cls: type) -> None:
    assert not blocks.skips_experts(cls())


class Module:
    """What is asked of a module that holds parameters."""

    def __init__(self, parameter: Any = None, children: tuple[Any, ...] = ()) -> None:
        self._parameters, self._children = {"weight": parameter}, children

    def children(self) -> tuple[Any, ...]:
        return self._children

    def modules(self) -> list[Any]:
        return [self, *(inner for child in self._children for inner in child.modules())]

    def parameters(self) -> Any:
        return iter(p for module in self.modules() for p in module._parameters.values() if p is not None)


@pytest.mark.parametrize(
    ("parameter", "found"),
    [
        (SimpleNamespace(shape=(8, 4, 4)), True),
        (SimpleNamespace(shape=(0,), ds_shape=(8, 4, 4)), True),  # loaded under ZeRO-3
        (SimpleNamespace(shape=(4, 4)), False),
        (SimpleNamespace(shape=(0,), ds_shape=(4, 4)), False),
    ],
)
def test_experts_of_one_parameter_are_known_by_its_dimensions(parameter: Any, found: bool) -> None:
    experts = Module(parameter, (Module(),))
    assert [*blocks.stacked_experts(Module(children=(experts,)))] == [experts] * found


def test_code_that_cannot_be_read_is_left_alone() -> None:
    written: dict[str, Any] = {}
    exec("class Block:\n    def forward(self, x): ...\n", written)
    assert not blocks.skips_experts(written["Block"]())
