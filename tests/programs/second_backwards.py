"""Backwards under DDP after the one that its reducer waits for, held against gradients averaged by hand.

    torchrun --nproc_per_node 2 -m tests.programs.second_backwards [--patched]

Rank 0 prints a line ``<case> right`` or ``<case> wrong`` for each case of ``CASES``.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CASES: dict[str, Callable[[Any, torch.Tensor], None]] = {}
SEARCHED = ("searched-less", "searched-alike")
LOCAL = ("second-in-no-sync", "on-one-rank", "after-one-rank")  # what is added last stays where it is


def case(function: Callable[[Any, torch.Tensor], None]) -> Callable[[Any, torch.Tensor], None]:
    CASES[function.__name__.replace("_", "-")] = function
    return function


class Net(torch.nn.Module):  # type: ignore[misc]  # torch is not where mypy runs
    """Two layers of which a caller may pass one by; it also returns what lies between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, passed_by: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        between = self.one(x)
        return between, between if passed_by else self.two(between)


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


def is_right(name: str) -> bool:
    """Whether two steps of the case leave this rank the gradients they should."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(dist.get_rank() + 1))
    alone, ddp = Alone(), DistributedDataParallel(Net(), find_unused_parameters=name in SEARCHED)
    for _ in range(2):
        for model in (alone, ddp):
            model.module.zero_grad()
            CASES[name](model, x)
    if name in LOCAL:
        return not same_on_every_rank(gradients(ddp.module))
    average(alone.module)
    return bool(torch.allclose(gradients(ddp.module), gradients(alone.module), atol=1e-6))


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
            right = torch.tensor(int(is_right(name)))
            dist.all_reduce(right, op=dist.ReduceOp.MIN)
            word = "right" if right else "wrong"
        except RuntimeError as error:
            word = f"ends: {str(error).splitlines()[0][:80]}"
        if dist.get_rank() == 0:
            print(name, word, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
