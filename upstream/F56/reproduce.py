"""Sequence parallelism: gradients of ZeRO-2 are too large by the size of the group; ZeRO-3's are right.

    python reproduce.py      # 1 where a stage's gradient is not the whole row's, 0 where all are; two ranks

The loss is ALST's, accelerate's and HF Trainer's: the ranks' mean losses, gathered differentiably.
"""

import multiprocessing
import os
import socket
import sys
import warnings

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.utils import safe_get_full_grad
from torch import distributed
from torch.distributed.nn.functional import all_gather

warnings.simplefilter("ignore")

ROW = torch.arange(32.0).reshape(4, 8) / 32  # four tokens, two on each rank


def loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens).square().mean()


def made() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(8, 8, bias=False)


def train(rank: int, port: int, said) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    deepspeed.init_distributed(dist_backend="gloo", verbose=False, auto_mpi_discovery=False)
    parallel_state_sp.initialize_sequence_parallel(2)
    whole = made()
    loss(whole, ROW).backward()
    for stage in (2, 3):
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "sequence_parallel_size": 2,
        }
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine, *_ = deepspeed.initialize(
            model=model, config=config, optimizer=optimizer, mpu=parallel_state_sp
        )
        own = loss(engine, ROW[2 * rank : 2 * rank + 2])
        engine.backward(sum(all_gather(own, group=parallel_state_sp.get_sequence_parallel_group())) / 2)
        times = float(safe_get_full_grad(model.weight).norm() / whole.weight.grad.norm())
        if rank == 0:
            said.put((stage, times))
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
found = [said.get() for _ in (2, 3)]
print(f"deepspeed {deepspeed.__version__}")
print("gradients of the whole row: " + ", ".join(f"ZeRO-{stage} {times:.2f} times" for stage, times in found))
sys.exit(any(abs(times - 1) > 1e-3 for _, times in found))
