"""ZeRO-2 with ``overlap_comm`` lets go of a large gradient whose reduction waits on another stream.

    python reproduce.py      # 1 where torch is not told that the stream uses it, 0 where it is; three ranks

The CPU gets two streams that do nothing, so that DeepSpeed takes the way it takes on a GPU. Noted is whether
the memory of a gradient that is larger than a bucket was recorded for the stream of its reduction.
"""

import contextlib
import multiprocessing
import os
import socket
import sys
import warnings

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import distributed

warnings.simplefilter("ignore")

BUCKET, RANKS = 32, 3


class Stream:
    def wait_stream(self, other: "Stream") -> None:
        """Nothing runs on a stream here."""


def train(rank: int, port: int, said) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    deepspeed.init_distributed(dist_backend="gloo", verbose=False, auto_mpi_discovery=False)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": BUCKET},
        "zero_allow_untested_optimizer": True,
    }
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer)
    backward, reductions = Stream(), Stream()
    recorded: list[tuple[int, Stream]] = []
    large: list[bool] = []  # of each large gradient, whether it was recorded for its reduction
    average = engine.optimizer.average_tensor

    def memory(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage().data_ptr()

    def average_tensor(tensor: torch.Tensor, *args) -> None:
        recorded.clear()
        average(tensor, *args)
        if tensor.numel() > BUCKET:
            large.append((memory(tensor), reductions) in recorded)

    torch.Tensor.record_stream = lambda tensor, stream: recorded.append((memory(tensor), stream))
    get_accelerator().resolves_data_dependency = lambda: False
    get_accelerator().current_stream = lambda *index: backward
    get_accelerator().stream = lambda stream: contextlib.nullcontext()
    engine.optimizer.reduction_stream = reductions
    engine.optimizer.average_tensor = average_tensor
    engine.backward(engine(torch.ones(1, 8)).square().mean())
    said.put((rank, large.count(False), len(large)))
    distributed.barrier()
    distributed.destroy_process_group()


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
context = multiprocessing.get_context("fork")
said = context.SimpleQueue()
ranks = [context.Process(target=train, args=(rank, port, said)) for rank in range(RANKS)]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
found = sorted(said.get() for _ in ranks)
print(f"deepspeed {deepspeed.__version__}")
print("large gradients let go of too early: " + ", ".join(f"{n} of {all} on rank {r}" for r, n, all in found))
sys.exit(any(early for _, early, _ in found))
