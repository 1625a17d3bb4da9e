"""What patches do with devices, asked without one: torch's ``meta``, and modules that say they are one.

    python -m tests.programs.accelerators

Prints a JSON line: by question, the answer.
"""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

import vlmpatch  # noqa: F401  (makes vlmpatch.patches importable in a checkout)

patches = "vlmpatch.patches"
aside = importlib.import_module(f"{patches}._shared.random_numbers").drawn_aside
distributed = importlib.import_module(f"{patches}._shared.distributed")
missing = importlib.import_module(f"{patches}._shared.missing_gradients")
images = importlib.import_module(f"{patches}.transformers.batches_without_images")
several = importlib.import_module(f"{patches}.torch.ddp_several_forwards")
wrappers = importlib.import_module(f"{patches}.transformers.wrapper_calls_on_every_rank")


class Generators:
    """An accelerator as torch's ``fork_rng`` sees it: a number for each device, one more with each draw."""

    def __init__(self) -> None:
        self.drawn = {0: 0, 1: 0}

    def get_rng_state(self, device: Any) -> int:
        return self.drawn[device.index]

    def set_rng_state(self, state: int, device: Any) -> None:
        self.drawn[device.index] = state


def random_numbers() -> Any:
    """What stays of draws on the CPU and on two devices, of which a tower and a text have one each."""
    torch.hpu = Generators()  # as Intel's package does
    before = torch.get_rng_state()
    with aside([torch.device("cpu"), torch.device("hpu", 0), torch.device("hpu", 1)]):
        torch.rand(1)
        torch.hpu.drawn[0] += 1
        torch.hpu.drawn[1] += 1
    with aside([torch.device("meta"), torch.device("xla", 0)]):
        torch.rand(1)
    return [bool((torch.get_rng_state() == before).all()), torch.hpu.drawn]


class LikeNccl:
    """A group that takes tensors of its device alone."""

    _device_types = (torch.device("meta"),)


def where_ranks_talk() -> Any:
    """On which device numbers are reduced by a group that refuses a CPU's; gloo takes them where they are."""
    places: list[str] = []
    original = dist.all_reduce
    dist.all_reduce = lambda tensor, op, group: places.append(tensor.device.type)
    try:
        distributed.reduced_to_largest(torch.ones(2), [LikeNccl()], torch.device("cpu"))
        distributed.reduced_to_largest(torch.ones(2), [LikeNccl()], torch.device("meta"))
        distributed.reduced_to_largest(torch.ones(2), [dist.group.WORLD], torch.device("cpu"))
    finally:
        dist.all_reduce = original
    return places


def where_it_computes() -> Any:
    """Of a wrapper whose weights are offloaded, where a batch has a text alone, and an index of a CPU's."""
    weights = torch.nn.Linear(2, 2)
    text = torch.ones(1, 3, dtype=torch.long, device="meta")
    said = {"lengths": torch.tensor([3]), "inputs": {"input_ids": text}}
    return [wrappers._device(weights, (), given).type for given in (said, {})]


class ToCpu(torch.autograd.Function):  # type: ignore[misc]
    """A zero on the CPU, whose gradient goes on to a tensor that has no numbers."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        ctx.like = tensor
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.ones_like(ctx.like)


def forwards_over_devices() -> Any:
    """What DDP is told to search where a backward goes through two forwards of a model on two devices."""
    parts = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta")])
    told: list[list[str]] = []
    reducer = SimpleNamespace(
        prepare_for_backward=lambda outputs: told.append([each.device.type for each in outputs])
    )
    ddp = SimpleNamespace(
        module=parts,
        reducer=reducer,
        require_backward_grad_sync=True,
        _check_reducer_finalized=lambda: None,
    )
    forwards = several.Forwards()
    forwards.made = 2
    hidden = parts[0](torch.ones(1, 2))
    hidden.register_hook(lambda gradient: several.begin(ddp, forwards))
    (hidden.sum() + ToCpu.apply(parts[1](torch.ones(1, 2, device="meta")))).backward()
    return told


def dropped() -> Any:
    """Gradients that stand for none, and others, after they were dropped: each device is asked once."""
    asked: list[int] = []
    own = torch.Tensor.tolist
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]

    def told(tensor: Any) -> Any:
        asked.append(tensor.numel())
        return own(tensor)

    for parameter, value in zip(parameters, (-0.0, 0.0, 1.0), strict=True):
        parameter.grad = torch.full_like(parameter, value)
    torch.Tensor.tolist = told
    try:
        missing._drop(parameters)
    finally:
        torch.Tensor.tolist = own
    return [asked, [parameter.grad is None for parameter in parameters]]


def errors() -> Any:
    """Of which errors a blank image is not the cause."""
    tried = [
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
        RuntimeError("NCCL communicator was aborted on rank 1."),
        dist.DistBackendError("a rank has left"),
        RuntimeError("[/build/gloo/transport/tcp/pair.cc:1] Connection closed by peer"),
        RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu!"),
        ValueError("Image features and image tokens do not match"),
    ]
    return [images.is_of_the_machine(error) for error in tried]


QUESTIONS = (
    *(random_numbers, where_ranks_talk, where_it_computes, forwards_over_devices),
    *(dropped, errors),
)


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print(json.dumps({question.__name__: question() for question in QUESTIONS}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
