"""FSDP1: a forward without the adapter, before the backward, takes the gradients of checkpointed blocks.

    python reproduce.py      # 1 where it does, 0 where not; two processes, no GPU

So does DPO with LoRA and no reference model of its own: the policy is asked once more, with its adapter
disabled, between its forward and its backward.
"""

import multiprocessing
import os
import socket
import sys

import torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import checkpoint


class Adapted(torch.nn.Module):
    """A frozen layer and a trained one beside it, which can be disabled as PEFT's adapters are."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.base.requires_grad_(False)
        self.enabled = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.compute, x, use_reentrant=True)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.adapter(x) if self.enabled else self.base(x)


def enable(model: torch.nn.Module, enabled: bool) -> None:
    for module in model.modules():
        if isinstance(module, Adapted):
            module.enabled = enabled
    for name, parameter in model.named_parameters():
        if "adapter" in name:
            parameter.requires_grad_(enabled)


def train(rank: int, port: int, said) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = FullyShardedDataParallel(
        torch.nn.Sequential(Adapted(), Adapted()),
        auto_wrap_policy=ModuleWrapPolicy({Adapted}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    x = torch.randn(2, 8, requires_grad=True)
    loss = model(x).sum()
    enable(model, False)
    with torch.no_grad():
        model(x)
    enable(model, True)
    loss.backward()
    shards = [each for each in model.parameters() if each.requires_grad and each.numel()]
    without = sum(each.grad is None or not each.grad.any() for each in shards)
    said.put((without, len(shards)))
    distributed.barrier()
    distributed.destroy_process_group()


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
context = multiprocessing.get_context("fork")
said = context.SimpleQueue()
ranks = [context.Process(target=train, args=(rank, port, said)) for rank in (0, 1)]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
(first, one), (second, two) = said.get(), said.get()
print(f"torch {torch.__version__}\ntrained shards without a gradient: {first + second} of {one + two}")
sys.exit(first + second > 0)
