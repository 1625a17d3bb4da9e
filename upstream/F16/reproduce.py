"""ZeRO-2 sums gradients of different parameters where ranks do not use the same ones.

    python reproduce.py      # 1 where gradients are wrong, 0 where all are right; two ranks, no GPU

Each rank runs one of two branches, as a rank with an image runs a vision tower and one without does not. Here
the branches are of one size, so that nothing fails; other sizes end in an error (gloo) or a hang (NCCL).
"""

import multiprocessing
import os
import socket
import sys
import warnings

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad
from torch import distributed

warnings.simplefilter("ignore")


class Branches(torch.nn.Module):
    """Two branches, of which a batch takes one, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.head = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.head(self.branches[branch](x)).square().mean()


def right() -> list[torch.Tensor]:
    """The mean of the ranks' gradients, where a parameter that a rank did not use has a zero."""
    model = Branches()
    for branch in (0, 1):
        (model(torch.ones(1, 8), branch) / 2).backward()
    return [parameter.grad for parameter in model.parameters()]


def train(rank: int, port: int, said) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    deepspeed.init_distributed(dist_backend="gloo", verbose=False, auto_mpi_discovery=False)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer)
    engine.backward(engine(torch.ones(1, 8), branch=rank))
    found = [safe_get_full_grad(parameter) for parameter in model.parameters()]
    wrong = sum(not torch.allclose(one, other, atol=1e-6) for one, other in zip(found, right(), strict=True))
    if rank == 0:
        said.put((wrong, len(found)))
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
wrong, every = said.get()
print(f"deepspeed {deepspeed.__version__}\n{wrong} of {every} gradients are wrong")
sys.exit(wrong > 0)
