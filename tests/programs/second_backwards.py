"""Backwards under DDP after the one that its reducer waits for, held against gradients averaged by hand.

    torchrun --nproc_per_node 2 -m tests.programs.second_backwards [--patched]

Rank 0 prints a line ``<case> right`` or ``<case> wrong`` for each case of ``CASES``.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 20_000
CASES: dict[str, Callable[[Any, torch.Tensor], None]] = {}
SEARCHED = ("searched-less", "searched-alike")
ONCE = ("one-forward-one-backward", "a-part-each", "a-gradient-of-the-input-first", "expected-by-hand")
LOCAL = ("second-in-no-sync", "on-one-rank", "after-one-rank")  # what is added last stays where it is


def case(function: Callable[[Any, torch.Tensor], None]) -> Callable[[Any, torch.Tensor], None]:
    CASES[function.__name__.replace("_", "-")] = function
    return function


class Net(torch.nn.Module):  # type: ignore[misc]  # torch is not where mypy runs
    """Two layers of which a caller may pass one by; it also returns what lies between.

    Wide enough for a reduction to take longer than what follows it.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = torch.nn.Linear(4, WIDTH), torch.nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor, passed_by: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        between = self.one(x)
        return between, between if passed_by else self.two(between / WIDTH**0.5)


def losses(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """Of three forwards."""
    return [model(x)[1].mean(), model(2 * x)[1].pow(2).mean(), model(x - 1)[1].pow(4).mean()]


@case
def one_forward_one_backward(model: Any, x: torch.Tensor) -> None:
    losses(model, x)[0].backward()


@case
def forwards_then_backwards(model: Any, x: torch.Tensor) -> None:
    for loss in losses(model, x):
        loss.backward()


@case
def kept_graph(model: Any, x: torch.Tensor) -> None:
    loss = model(x)[1].pow(2).mean()
    loss.backward(retain_graph=True)
    (3 * loss).backward()


@case
def second_reaches_less(model: Any, x: torch.Tensor) -> None:
    between, out = model(x)
    out.pow(2).mean().backward(retain_graph=True)
    between.pow(2).mean().backward()


@case
def accumulated(model: Any, x: torch.Tensor) -> None:
    with model.no_sync():
        model(3 * x)[1].mean().backward()
    forwards_then_backwards(model, x)


@case
def a_part_each(model: Any, x: torch.Tensor) -> None:
    """Together they reach each parameter once: DDP waits for the second itself."""
    between, out = model(x)
    torch.autograd.backward(out.pow(2).mean(), inputs=list(model.module.two.parameters()), retain_graph=True)
    between.pow(2).mean().backward()


@case
def averaged_by_hand_as_well(model: Any, x: torch.Tensor) -> None:
    forwards_then_backwards(model, x)
    average(model.module)


@case
def a_gradient_of_the_input(model: Any, x: torch.Tensor) -> None:
    given = x.clone().requires_grad_()
    loss = model(given)[1].pow(2).mean()
    loss.backward(retain_graph=True)
    torch.autograd.grad(loss, given)


@case
def a_gradient_of_the_input_first(model: Any, x: torch.Tensor) -> None:
    """As a penalty on it takes it: the backward that the reducer waits for is the next one."""
    given = x.clone().requires_grad_()
    loss = model(given)[1].pow(2).mean()
    torch.autograd.grad(loss, given, retain_graph=True)
    loss.backward()


@case
def expected_by_hand(model: Any, x: torch.Tensor) -> None:
    """What threads advise (https://github.com/pytorch/pytorch/issues/80832)."""
    loss = model(x)[1].pow(2).mean()
    loss.backward(retain_graph=True)
    if isinstance(model, DistributedDataParallel):
        model.reducer._rebuild_buckets()
        model.reducer.prepare_for_backward([])
    (3 * loss).backward()


@case
def searched_less(model: Any, x: torch.Tensor) -> None:
    """The last forward, whose search stands, uses less than the first."""
    first, second = model(x)[1].mean(), model(x, passed_by=True)[1].pow(2).mean()
    first.backward()
    second.backward()


@case
def searched_alike(model: Any, x: torch.Tensor) -> None:
    forwards_then_backwards(model, x)


@case
def second_in_no_sync(model: Any, x: torch.Tensor) -> None:
    first = model(x)[1].mean()
    with model.no_sync():
        second = model(x)[1].pow(2).mean()
        first.backward()
        second.backward()


@case
def on_one_rank(model: Any, x: torch.Tensor) -> None:
    loss = model(x)[1].mean()
    loss.backward(retain_graph=True)
    if dist.get_rank() == 0:
        loss.backward()


@case
def after_one_rank(model: Any, x: torch.Tensor) -> None:
    """Ranks of that group were not together once."""
    first, second, _ = losses(model, x)
    first.backward()
    second.backward()


class Alone:
    """Stands for DDP: a rank by itself."""

    def __init__(self) -> None:
        self.module = Net()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def average(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def gradients(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def is_right(name: str, *, view: bool) -> bool:
    """Whether two steps of the case leave this rank the gradients they should.

    Args:
        name: of the case.
        view: gradients lie in the memory that DDP reduces.
    """
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(dist.get_rank() + 1))
    alone, searches = Alone(), name in SEARCHED
    ddp = DistributedDataParallel(Net(), find_unused_parameters=searches, gradient_as_bucket_view=view)
    for _ in range(2):
        for model in (alone, ddp):
            model.module.zero_grad()
            with counted_all_reduces() as counted:
                CASES[name](model, x)
    if name in ONCE and counted:
        return False  # DDP reduces these itself, in another way: in the same memory that would be a race
    if name in LOCAL:
        return not same_on_every_rank(gradients(ddp.module))
    average(alone.module)
    return bool(torch.allclose(gradients(ddp.module), gradients(alone.module), atol=1e-6))


@contextlib.contextmanager
def counted_all_reduces() -> Iterator[list[str]]:
    """Those that Python asks for; DDP's reducer asks in C++."""
    counted, original = [], dist.all_reduce

    def all_reduce(*args: Any, **kwargs: Any) -> Any:
        counted.append("all_reduce")
        return original(*args, **kwargs)

    dist.all_reduce = all_reduce
    try:
        yield counted
    finally:
        dist.all_reduce = original


def same_on_every_rank(values: torch.Tensor) -> bool:
    every = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(every, values)
    return all(torch.equal(values, other) for other in every)


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    for name in CASES:
        if name in LOCAL[1:] and "--patched" in sys.argv:
            setattr(sys.modules["vlmpatch.patches._shared.all_or_none"], "WAIT", 2.0)  # noqa: B010
        try:
            right = torch.tensor(int(is_right(name, view=False) and is_right(name, view=True)))
            dist.all_reduce(right, op=dist.ReduceOp.MIN)
            word = "right" if right else "wrong"
        except RuntimeError as error:
            word = f"ends: {str(error).splitlines()[0][:80]}"
        if dist.get_rank() == 0:
            print(name, word, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
