"""What is forgotten of a backward that failed, and when other ranks are asked; real runs prove the rest."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import pytest

patch: Any = importlib.import_module("vlmpatch.patches.deepspeed.zero_failed_backward")
words: Any = importlib.import_module("vlmpatch.patches._shared.failed_backward")


class Group:
    """A process group that counts its collectives."""

    def __init__(self) -> None:
        self.begun = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.begun


class Store(dict[str, str]):
    """The job's, as far as words go."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


class Param:
    def __init__(self) -> None:
        self.grad: Any = None
        self.grad_accum: Any = None


class Bucket:
    elements = 3

    def __init__(self) -> None:
        self.params = [1]

    def clear(self) -> None:
        self.params.clear()
        self.elements = 0


class DeepSpeedZeroOptimizer:
    cpu_offload = False
    partition_gradients = True
    micro_step_id = 4

    def __init__(self) -> None:
        self.dp_process_group = Group()
        self.params_already_reduced = [False, False]
        self.ipg_buckets = {"float32": Bucket()}
        self.extra_large_param_to_reduce: dict[Any, Any] = {"float32": 1}
        self.bit16_groups = [[Param(), Param()]]
        self.released = 0

    def _clear_previous_reduced_grads(self) -> None:
        pass

    def _release_ipg_buffers(self) -> None:
        self.released += 1


class Engine:
    micro_steps = 0

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def gradient_accumulation_steps(self) -> int:
        return 1


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Of a job of two ranks, of which this is the first."""
    made = Store()
    monkeypatch.setattr(words, "job_store", lambda: made)
    monkeypatch.setattr(words, "group_name", lambda group: "0")
    monkeypatch.setattr(words, "rank", lambda: 0)
    monkeypatch.setattr(words, "WAIT", 0.0)
    fake = types.SimpleNamespace(get_process_group_ranks=lambda group: [0, 1])
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)
    torch = types.SimpleNamespace(distributed=fake, is_grad_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return made


def fails(engine: Engine, collectives: int = 0, reduced: bool = False) -> None:
    """A backward that leaves its marks and raises."""

    def original(self: Engine) -> None:
        optimizer = self.optimizer
        optimizer.dp_process_group.begun += collectives
        optimizer.params_already_reduced[0] = reduced
        optimizer.micro_step_id += 1
        optimizer.bit16_groups[0][0].grad = 1
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        patch.backward(original, engine)


def forward(engine: Engine) -> None:
    patch.forward(lambda self: None, engine)


def is_clean(optimizer: DeepSpeedZeroOptimizer) -> bool:
    buckets = [bucket.params for bucket in optimizer.ipg_buckets.values()]
    grads = [param.grad for group in optimizer.bit16_groups for param in group]
    return not any(
        [*optimizer.params_already_reduced, *buckets, *grads, optimizer.extra_large_param_to_reduce]
    )


def test_what_began_no_collective_concerns_nobody_else(store: Store) -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    fails(engine)
    assert not is_clean(engine.optimizer)
    forward(engine)
    assert is_clean(engine.optimizer)
    assert engine.optimizer.micro_step_id == 4
    assert engine.optimizer.released == 1


def test_a_backward_after_it_needs_no_forward(store: Store) -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    fails(engine)
    patch.backward(lambda self: None, engine)
    assert is_clean(engine.optimizer)


def test_it_is_forgotten_once(store: Store) -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    fails(engine)
    forward(engine)
    forward(engine)
    assert engine.optimizer.released == 1


def test_an_evaluation_leaves_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    fails(engine)
    monkeypatch.setattr(sys.modules["torch"], "is_grad_enabled", lambda: False)
    forward(engine)
    assert not is_clean(engine.optimizer)
    monkeypatch.setattr(sys.modules["torch"], "is_grad_enabled", lambda: True)
    forward(engine)
    assert is_clean(engine.optimizer)


def test_another_engine_is_left_alone(store: Store) -> None:
    one, other = Engine(DeepSpeedZeroOptimizer()), Engine(DeepSpeedZeroOptimizer())
    fails(one)
    forward(other)
    assert not is_clean(one.optimizer)
    assert other.optimizer.released == 0


def test_ranks_that_failed_alike_go_on(store: Store) -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    fails(engine, collectives=2, reduced=True)
    (key,) = store
    store[key.removesuffix("0") + "1"] = "2"
    forward(engine)
    assert is_clean(engine.optimizer)


@pytest.mark.parametrize("other", [None, "1"])
def test_a_rank_that_did_not_is_named(other: str | None, store: Store) -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    fails(engine, collectives=2)
    (key,) = store
    if other:
        store[key.removesuffix("0") + "1"] = other
    with pytest.raises(RuntimeError, match="not at the same place, on rank 1"):
        forward(engine)


def test_each_backward_of_a_group_has_its_own_word(store: Store) -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    fails(engine)
    forward(engine)
    patch.backward(lambda self: None, engine)
    fails(engine)
    assert len(store) == 2


def test_where_collectives_are_not_counted_nothing_is_said(store: Store) -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    engine.optimizer.dp_process_group = types.SimpleNamespace(_get_sequence_number_for_group=uncounted)
    with pytest.raises(ValueError, match="its own"):
        patch.backward(raising, engine)
    forward(engine)
    assert not store
    assert engine.optimizer.released == 0


def uncounted() -> int:
    raise RuntimeError("this backend does not count")


def raising(self: Engine) -> None:
    raise ValueError("its own")


def test_an_offloaded_sum_that_was_added_to_begins_anew(store: Store) -> None:
    engine = Engine(DeepSpeedZeroOptimizer())
    engine.optimizer.cpu_offload = True
    fails(engine, reduced=True)
    forward(engine)
    assert engine.optimizer.micro_step_id == patch.NEW_WINDOW["DeepSpeedZeroOptimizer"]


def test_other_optimizers_are_left_alone(store: Store) -> None:
    engine = Engine(None)
    with pytest.raises(ValueError, match="its own"):
        patch.backward(raising, engine)
    forward(engine)
