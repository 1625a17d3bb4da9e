"""accelerate, DDP: what was prepared for an evaluation is never put into DDP.

    python reproduce.py      # 1 where ranks have other gradients, 0 where the same; two processes, no GPU

``Trainer.evaluate`` before ``Trainer.train`` makes these two calls.
"""

import multiprocessing
import os
import socket
import sys

import accelerate
import torch
from torch import distributed


def train(rank: int, port: int, said) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    accelerator.prepare_model(model, evaluation_mode=True)
    accelerator.free_memory()
    trained = accelerator.prepare(model)
    trained(torch.full((1, 2), 1.0 + rank)).sum().backward()
    gradients = [None, None]
    distributed.all_gather_object(gradients, model.weight.grad.tolist())
    if rank == 0:
        said.put((type(trained).__name__, gradients))
    accelerator.end_training()


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
kind, (first, second) = said.get()
print(f"accelerate {accelerate.__version__}\nprepared for training: {kind}; gradients: {first} and {second}")
sys.exit(first != second)
