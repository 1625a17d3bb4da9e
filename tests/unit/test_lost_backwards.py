"""Which backwards before one step are added up; the sums themselves are proven in real runs."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.deepspeed.zero_lost_backwards")


class Sum:
    """A tensor, as far as sums go."""

    def __init__(self, value: int) -> None:
        self.value = value

    def add_(self, other: Sum) -> None:
        self.value += other.value


class DeepSpeedZeroOptimizer:
    cpu_offload = False

    def __init__(self) -> None:
        self.averaged_gradients: dict[int, list[Sum] | None] = {0: None}


class Engine:
    global_steps = 0

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.ends = True

    def is_gradient_accumulation_boundary(self) -> bool:
        return self.ends


@pytest.fixture(autouse=True)
def skipped(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Losses that are to be taken for no numbers."""
    losses: set[int] = set()

    def is_no_number(engine: Any, optimizer: Any, found: Any) -> bool:
        left = found.get(0)
        return bool(left) and left[0].value in losses

    monkeypatch.setattr(patch, "_is_no_number", is_no_number)
    return losses


def overwrites(engine: Engine, loss: int) -> None:
    """DeepSpeed's backward, and what it calls in its midst."""
    patch.zero_grad(lambda self: None, engine.optimizer)
    engine.optimizer.averaged_gradients[0] = [Sum(loss)]


def after(engine: Engine, *losses: int) -> int:
    for loss in losses:
        patch.backward(overwrites, engine, loss)
    return int(engine.optimizer.averaged_gradients[0][0].value)


def test_backwards_before_one_step_are_added() -> None:
    assert after(Engine(DeepSpeedZeroOptimizer()), 1, 2, 4) == 7


def test_a_step_begins_anew() -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    after(engine, 1)
    engine.optimizer.averaged_gradients[0] = None
    assert after(engine, 2) == 2


def test_a_step_drops_nothing_of_the_window_that_follows() -> None:
    """It calls zero_grad at its end; a ``loss.backward()`` without the engine comes after."""
    engine = Engine(DeepSpeedZeroOptimizer())
    after(engine, 1)
    engine.optimizer.averaged_gradients[0] = None
    patch.zero_grad(lambda self: None, engine.optimizer)
    engine.global_steps += 1
    overwrites(engine, 2)
    assert after(engine, 4) == 6


def test_what_is_no_number_is_not_added(skipped: set[int]) -> None:
    skipped.add(1)
    assert after(Engine(DeepSpeedZeroOptimizer()), 1, 2, 4) == 6


@pytest.mark.parametrize("whose", ["optimizer", "engine"])
def test_what_was_dropped_is_not_added(whose: str) -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    after(engine, 1)
    if whose == "engine":
        patch.zero_grad_of_engine(lambda self: None, engine)
    else:
        patch.zero_grad(lambda self: None, engine.optimizer)
    assert after(engine, 2, 4) == 6


def test_what_the_model_dropped_by_itself_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {name: lambda self, *_: None for name in ("zero_grad", "parameters")}
    net, runtime = type("Module", (), calls), ModuleType("deepspeed.runtime.engine")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(nn=SimpleNamespace(Module=net)))
    vars(runtime)["DeepSpeedEngine"] = type("DeepSpeedEngine", (), {"backward": overwrites, **calls})
    patch.apply(api.Patch("zero-lost-backwards", Journal()), runtime)
    engine, model, weight = Engine(DeepSpeedZeroOptimizer()), net(), object()
    engine.optimizer.bit16_groups = [[weight]]
    after(engine, 1)
    model.parameters = lambda: []
    model.zero_grad()  # of another
    assert after(engine, 2) == 3
    model.parameters = lambda: [weight]
    model.zero_grad()
    assert after(engine, 4, 8) == 12


@pytest.fixture
def adds_up(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Of a release whose backward adds to what it finds."""
    monkeypatch.setattr(patch, "_adding", {DeepSpeedZeroOptimizer})
    return Engine(DeepSpeedZeroOptimizer())


def adds(engine: Engine, loss: int) -> None:
    """Its backward."""
    patch.zero_grad(lambda self: None, engine.optimizer)
    earlier = engine.optimizer.averaged_gradients[0]
    engine.optimizer.averaged_gradients[0] = [Sum(loss + (earlier[0].value if earlier else 0))]


def summed(engine: Engine, *losses: int) -> int:
    for loss in losses:
        patch.backward(adds, engine, loss)
    return int(engine.optimizer.averaged_gradients[0][0].value)


def test_a_release_that_adds_up_is_left_to_it(adds_up: Engine, skipped: set[int]) -> None:
    """What is no number as well: a loss scaler is to see it."""
    skipped.add(1)
    assert summed(adds_up, 1, 2, 4) == 7


def test_there_too_what_was_dropped_is_not_added(adds_up: Engine) -> None:
    summed(adds_up, 1)
    patch.zero_grad(lambda self: None, adds_up.optimizer)
    assert summed(adds_up, 2, 4) == 6


def test_a_zero_grad_within_a_window_or_in_a_step_drops_nothing(adds_up: Engine) -> None:
    adds_up.ends = False
    summed(adds_up, 1)
    patch.zero_grad(lambda self: None, adds_up.optimizer)
    adds_up.ends = True
    assert summed(adds_up, 2) == 3
    adds_up.global_steps += 1
    patch.zero_grad(lambda self: None, adds_up.optimizer)
    adds_up.ends = False
    assert summed(adds_up, 4) == 7


def test_sums_that_a_backward_leaves_alone_stay() -> None:
    """As before a window's end."""
    engine = Engine(DeepSpeedZeroOptimizer())
    after(engine, 1)
    patch.backward(lambda self, loss: None, engine, 2)
    assert engine.optimizer.averaged_gradients[0][0].value == 1


def test_other_optimizers_are_left_alone() -> None:
    engine = Engine(None)
    patch.backward(lambda self, loss: None, engine, 1)
    patch.zero_grad_of_engine(lambda self: None, engine)


def test_offloaded_sums_are_added_until_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is added in a window that follows a step, whichever of its micro-batches it is."""
    added: list[int] = []
    monkeypatch.setattr(patch, "_blank", lambda tensors: None)
    monkeypatch.setattr(patch, "_all_on_cpu", lambda optimizer: [])
    monkeypatch.setattr(patch, "_offloaded", lambda optimizer: [7])
    monkeypatch.setattr(patch, "_add_offloaded", lambda optimizer, earlier: added.extend(earlier))
    optimizer = DeepSpeedZeroOptimizer()
    optimizer.cpu_offload = True
    engine = Engine(optimizer)
    after(engine, 1)
    patch.step(lambda self: None, optimizer)
    patch.zero_grad(lambda self: None, optimizer)  # as the engine does after it
    engine.ends = False
    after(engine, 2, 2)
    engine.ends = True
    after(engine, 2)
    assert added == []
    after(engine, 4)
    assert added == [7]


class Cpu:
    """A tensor that an offloaded optimizer keeps on the CPU."""

    value: float = 1

    def fill_(self, value: float) -> None:
        self.value = value


class Partition:
    def __init__(self) -> None:
        self.grad = Cpu()


@pytest.mark.parametrize("ends", [True, False])
def test_an_offloaded_window_that_ended_is_forgotten_after_a_zero_grad(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patch, "_copied", lambda: None)
    optimizer: Any = DeepSpeedZeroOptimizer()
    optimizer.cpu_offload, optimizer.accumulated_grads_in_cpu = True, {0: Cpu()}
    optimizer.single_partition_of_fp32_groups = [Partition()]
    engine = Engine(optimizer)
    engine.ends = ends
    after(engine, 1)
    patch.zero_grad(lambda self: None, optimizer)
    after(engine, 2)
    kept = [optimizer.accumulated_grads_in_cpu[0], optimizer.single_partition_of_fp32_groups[0].grad]
    assert [tensor.value for tensor in kept] == ([0, 0] if ends else [1, 1])


@pytest.mark.parametrize(
    ("source", "spares"),
    [
        (
            "if self.micro_step_id > 0:\n    accumulate()\nelse:\n    copy_gradients_to_cpu()",
            True,
        ),  # 0.15 to 0.18
        ("if not self.is_gradient_accumulation_boundary:\n    copy_gradients_to_cpu()", True),  # 0.14
        ("if self.micro_step_id > 0:\n    accumulate()\ncopy_gradients_to_cpu()", False),  # 0.19
    ],
)
def test_where_a_window_ends_without_its_last_batch_on_the_cpu(source: str, spares: bool) -> None:
    assert bool(patch.SPARES_LAST.search(source)) is spares


class Past(DeepSpeedZeroOptimizer):
    """Of a release that tells how deep in a backward it is."""

    _backward_active_depth = 0


Past.__name__ = DeepSpeedZeroOptimizer.__name__


class Added:
    """A tensor whose sums are new ones."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __add__(self, other: Added) -> Added:
        return Added(self.value + other.value)


def past(engine: Engine, *phases: int) -> int:
    """A ``loss.backward()`` of so many phases, as reentrant checkpoints make them, each with all so far."""
    patch.prologue(lambda self: None, engine)
    for so_far in phases:

        def ends(self: Engine, so_far: int = so_far) -> None:
            self.optimizer.averaged_gradients[0] = [Added(so_far)]

        patch.epilogue(ends, engine)
    return int(engine.optimizer.averaged_gradients[0][0].value)


def test_backwards_without_the_engine_are_added() -> None:
    engine = Engine(Past())
    assert past(engine, 1) == 1
    assert past(engine, 2) == 3
    patch.zero_grad(lambda self: None, engine.optimizer)
    assert past(engine, 4) == 4


def test_a_phase_of_a_backward_is_not_added_to_the_next() -> None:
    engine = Engine(Past())
    past(engine, 1)
    assert past(engine, 2, 6) == 7


def test_a_backward_that_reaches_no_end_takes_nothing_away() -> None:
    """As ``torch.autograd.grad`` does, between a backward and its step."""
    engine = Engine(Past())
    past(engine, 1)
    patch.prologue(lambda self: None, engine)
    assert engine.optimizer.averaged_gradients[0][0].value == 1
    patch.step(lambda self: None, engine.optimizer)
    engine.optimizer.averaged_gradients[0] = None
    assert past(engine, 2) == 2


def test_without_the_engine_what_is_no_number_is_not_added(skipped: set[int]) -> None:
    skipped.add(1)
    engine = Engine(Past())
    past(engine, 1)
    assert past(engine, 2) == 2


def test_a_step_of_several_is_known_from_the_one_before() -> None:
    """What a loss scaler is to see is not dropped where a script adds up."""
    last: Any = None
    for steps, ends in ((0, True), (0, True), (1, True)):
        last = patch._next(last, steps, None, ends)
    assert last.several
    assert not patch._next(last, 2, None, True).several


def test_micro_batches_of_a_window_are_no_several() -> None:
    last: Any = None
    for steps, ends in ((0, False), (0, True), (1, False)):
        last = patch._next(last, steps, None, ends)
    assert not last.several


def test_a_backward_that_failed_leaves_what_was_there() -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    after(engine, 1)
    with pytest.raises(ZeroDivisionError):
        patch.backward(fails, engine, 2)
    assert after(engine, 4) == 5


def fails(engine: Engine, loss: int) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("inside", [True, False])
def test_an_offloaded_backward_in_no_sync_ends_no_window(inside: bool) -> None:
    engine: Any = Engine(DeepSpeedZeroOptimizer())
    engine.optimizer.cpu_offload = True
    engine.inside_no_sync_ctxt = inside
    patch.backward(lambda self, loss: None, engine, 1)
    assert (engine.optimizer in patch._ended) is not inside
