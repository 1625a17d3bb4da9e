"""When a failed backward under DDP is forgotten, and whom it asks; real runs prove the rest."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
from typing import Any

import pytest

patch: Any = importlib.import_module("vlmpatch.patches.torch.ddp_failed_backward")
backwards: Any = importlib.import_module("vlmpatch.patches._shared.ddp_backwards")
words: Any = importlib.import_module("vlmpatch.patches._shared.failed_backward")


class Grad:
    def __init__(self, nonzero: int) -> None:
        self.nonzero = nonzero

    def count_nonzero(self) -> int:
        return self.nonzero


class Tensor:
    def __init__(self, grad_fn: Any = None) -> None:
        self.grad_fn = grad_fn
        self.grad: Grad | None = None


class Group:
    begun = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.begun


class Reducer:
    resets = 0

    def _reset_state(self) -> None:
        self.resets += 1


class Ddp:
    """What the patch asks of ``DistributedDataParallel``."""

    def __init__(self, group: Any) -> None:
        self.process_group, self.reducer = group, Reducer()
        self.waits, self.grads = False, [Tensor(), Tensor()]
        self._has_rebuilt_buckets = True

    def _check_reducer_finalized(self) -> None:
        if self.waits:
            raise RuntimeError("Expected to have finished reduction in the prior iteration")

    def parameters(self) -> list[Tensor]:
        return self.grads


class Store(dict[str, str]):
    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


@dataclasses.dataclass
class Job:
    """A job of two ranks, of which this is the first."""

    store: Store
    ends: list[Any]  # what runs when the backward ends
    barriers: list[Any]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job(Store(), [], [])
    monkeypatch.setattr(words, "job_store", lambda: made.store)
    monkeypatch.setattr(words, "group_name", lambda group: "0")
    monkeypatch.setattr(words, "rank", lambda: 0)
    monkeypatch.setattr(words, "WAIT", 0.0)
    engine = types.SimpleNamespace(queue_callback=made.ends.append)
    dist = types.SimpleNamespace(get_process_group_ranks=lambda _: [0, 1], barrier=made.barriers.append)
    variable = types.SimpleNamespace(_execution_engine=engine)
    torch = types.SimpleNamespace(Tensor=Tensor, autograd=types.SimpleNamespace(Variable=variable))
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return made


def failed(group: Group, collectives: int = 2) -> Ddp:
    """One whose backward began and did not end."""
    ddp = Ddp(group)
    patch.begin(ddp)
    group.begun += collectives
    ddp.waits = True
    return ddp


def other_failed(job: Job, collectives: str) -> None:
    job.store["/".join([words.run_prefix(), "failed", patch.ID, "0", "1", "1"])] = collectives


def test_ranks_that_failed_alike_go_on(job: Job) -> None:
    ddp = failed(Group())
    other_failed(job, "2")
    patch.forget(ddp)
    assert ddp.reducer.resets == 1
    assert job.barriers == [ddp.process_group]
    assert ddp not in patch._open


@pytest.mark.parametrize("other", [None, "1"])
def test_a_rank_that_did_not_is_named(other: str | None, job: Job) -> None:
    ddp = failed(Group())
    if other:
        other_failed(job, other)
    with pytest.raises(RuntimeError, match=r"\[ddp-failed-backward\].* not at the same place, on rank 1"):
        patch.forget(ddp)
    assert not ddp.reducer.resets


def test_a_backward_that_ended_is_not_one_that_failed(job: Job) -> None:
    ddp = failed(Group())
    for ended in job.ends:
        ended()
    assert ddp not in patch._open


def test_gradients_that_were_not_dropped_leave_it_to_torch(job: Job) -> None:
    ddp = failed(Group())
    ddp.grads[1].grad = Grad(3)
    patch.forget(ddp)
    assert not job.store
    assert not ddp.reducer.resets


def test_gradients_set_to_zero_are_dropped(job: Job) -> None:
    ddp = failed(Group())
    ddp.grads[1].grad = Grad(0)
    other_failed(job, "2")
    patch.forget(ddp)
    assert ddp.reducer.resets == 1


def test_one_that_reduced_nothing_concerns_nobody_else(job: Job) -> None:
    ddp = failed(Group(), collectives=0)
    ddp.waits = False
    patch.forget(ddp)
    assert not job.store
    assert not ddp.reducer.resets


def test_each_backward_of_a_group_has_its_own_word(job: Job) -> None:
    group = Group()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            patch.forget(failed(group))
    assert len(job.store) == 2


def test_where_collectives_are_not_counted_nothing_is_noted(job: Job) -> None:
    ddp = Ddp(types.SimpleNamespace())
    patch.begin(ddp)
    assert ddp not in patch._open
    assert not job.ends


def test_every_tensor_of_an_output_is_found_once(job: Job) -> None:
    @dataclasses.dataclass
    class Output:
        loss: Tensor
        words: str = "none"

    one, two, three = Tensor(), Tensor(), Tensor()
    nested: list[Any] = [one, (two, None), {"more": Output(three)}, one]
    nested.append(nested)
    found = list(backwards.tensors_of(nested))
    assert {id(each) for each in found} == {id(one), id(two), id(three)}
    assert len(found) == 3
