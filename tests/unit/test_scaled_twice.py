"""What ``engine.backward`` is told, and what the hooks on its outputs do; the matrix has the gradients."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from vlmpatch.gate.source import Code, Unrecognised

patch: Any = importlib.import_module("vlmpatch.patches.deepspeed.accumulation_scaled_twice")


class Engine:
    """DeepSpeed's, with a model that returns its logits beside its loss."""

    def __init__(self, steps: int, pipeline: bool = False) -> None:
        self.steps, self.pipeline_parallelism = steps, pipeline
        self._scale_wrt_gas = True

    def gradient_accumulation_steps(self) -> int:
        return self.steps

    def hook(self, grad: float) -> float:
        return grad / self.steps if self._scale_wrt_gas else grad

    def backward(self, loss: float, retain_graph: bool = False, scale_wrt_gas: bool = True) -> Any:
        self._scale_wrt_gas = scale_wrt_gas
        of_loss = patch.per_tensor(Engine.hook, self, loss)
        of_logits = patch.per_tensor(Engine.hook, self, of_loss)
        return of_logits, loss / self.steps if scale_wrt_gas else loss


def backward(engine: Engine, loss: float, *args: Any, **kwargs: Any) -> Any:
    return patch.backward(Engine.backward, engine, loss, *args, **kwargs)


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_divided_once_and_returned_as_ever(steps: int) -> None:
    assert backward(Engine(steps), 16.0) == (16.0 / steps, 16.0 / steps)


def test_who_divides_himself_is_obeyed() -> None:
    engine = Engine(4)
    assert backward(engine, 16.0, scale_wrt_gas=False) == (16.0, 16.0)
    assert engine._scale_wrt_gas is False
    assert backward(engine, 16.0, False, True) == (4.0, 4.0)
    assert engine._scale_wrt_gas is True


def test_a_backward_without_the_engine_is_left_to_the_hooks() -> None:
    engine = Engine(4)
    backward(engine, 16.0)
    assert patch.per_tensor(Engine.hook, engine, 16.0) == 4.0


def test_a_pipeline_is_left_alone() -> None:
    assert backward(Engine(2, pipeline=True), 16.0) == (4.0, 8.0)


HOOK = """\
    def _backward_prologue_per_tensor(self, grad):
        return grad / self.gradient_accumulation_steps()
"""
BACKWARD = "    def backward(self, loss, retain_graph=False, scale_wrt_gas=True):\n"
RETURNED = "        gas_scaled_loss = loss / self.gradient_accumulation_steps() if scale_wrt_gas else loss\n"
ITSELF = "        loss = loss / self.gradient_accumulation_steps() if scale_wrt_gas else loss\n"


def engine_of(body: str) -> Code:
    return Code("deepspeed.runtime.engine", "engine.py", f"class DeepSpeedEngine:\n{body}")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (HOOK + BACKWARD + RETURNED, None),
        (HOOK + BACKWARD + ITSELF, None),
        (BACKWARD + RETURNED, "no hook on what the engine returns divides a gradient"),
    ],
)
def test_the_look(body: str, reason: str | None) -> None:
    assert patch.look(engine_of(body)) == reason


def test_a_backward_that_divides_by_itself_is_left_alone() -> None:
    assert patch.leaves_it_to_the_hook(engine_of(HOOK + BACKWARD + RETURNED))
    assert not patch.leaves_it_to_the_hook(engine_of(HOOK + BACKWARD + ITSELF))


def test_another_backward_is_declined() -> None:
    body = HOOK + BACKWARD.replace("loss", "losses") + RETURNED
    with pytest.raises(Unrecognised):
        patch.look(engine_of(body))


def test_a_backward_that_raised_leaves_the_hooks_as_they_were() -> None:
    engine = Engine(4)

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        patch.backward(fails, engine, 16.0)
    assert patch.per_tensor(Engine.hook, engine, 16.0) == 4.0
