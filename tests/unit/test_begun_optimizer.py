"""What making the state of a new optimizer leaves as it was, be its step what it may."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

patch: Any = importlib.import_module("vlmpatch.patches.accelerate.fsdp1_resumed_optimizer")


class Param:
    """A tensor of one number."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.grad: float | None = None

    def detach(self) -> Param:
        return self

    def to(self, device: str, copy: bool) -> Param:
        assert (device, copy) == ("cpu", True)
        return Param(self.value)

    def copy_(self, other: Param) -> None:
        self.value = other.value


class Optimizer:
    def __init__(self, step: Callable[[Any], None]) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": [Param(1.0), Param(2.0)], "lr": 0.5}]
        self.state: dict[Any, Any] = {}
        self._optimizer_step_post_hooks = {1: lambda: pytest.fail("a hook was called")}
        self.step = lambda: step(self)


class Patch:
    @contextlib.contextmanager
    def swapped(self, target: Any, name: str, value: Any) -> Iterator[None]:
        before = getattr(target, name)
        setattr(target, name, value)
        try:
            yield
        finally:
            setattr(target, name, before)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch makes a state; where the step fails, what it has set stays."""
    module = ModuleType("torch.distributed.checkpoint.state_dict")

    def begin(optimizer: Any) -> None:
        (group,) = optimizer.param_groups
        rate, group["lr"] = group["lr"], 0.0
        for param in group["params"]:
            param.grad = 0.0
        optimizer.step()
        for hook in optimizer._optimizer_step_post_hooks.values():
            hook()
        group["lr"] = rate
        for param in group["params"]:
            param.grad = None

    vars(module)["_init_optim_state"] = begin
    for name in ("torch", "torch.distributed", "torch.distributed.checkpoint"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def restless(optimizer: Any) -> None:
    for param in optimizer.param_groups[0]["params"]:
        param.value += 1
        optimizer.state[param] = {"moved": 1}
    optimizer.param_groups[0]["betas"] = 0.9


def wants_a_closure(optimizer: Any) -> None:
    restless(optimizer)
    raise AssertionError("a closure is wanted")


@pytest.mark.parametrize(("step", "takes_it"), [(restless, True), (wants_a_closure, False)])
def test_only_the_state_is_made(step: Callable[[Any], None], takes_it: bool) -> None:
    optimizer = Optimizer(step)
    hooks = optimizer._optimizer_step_post_hooks
    assert patch._begun(Patch(), optimizer) is takes_it
    assert bool(optimizer.state) is takes_it
    (group,) = optimizer.param_groups
    assert group["lr"] == 0.5
    assert [(param.value, param.grad) for param in group["params"]] == [(1.0, None), (2.0, None)]
    assert optimizer._optimizer_step_post_hooks is hooks
