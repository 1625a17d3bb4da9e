"""accelerate, FSDP1, SHARDED_STATE_DICT: a new optimizer is loaded, and has no state.

    python reproduce.py      # 1 where it does, 0 where not; two processes, no GPU

``save_state`` and ``load_state`` call the two functions of accelerate that are called here.
"""

import multiprocessing
import os
import socket
import sys
import tempfile

import accelerate
import torch
from accelerate import FullyShardedDataParallelPlugin, PartialState
from accelerate.utils.fsdp_utils import load_fsdp_optimizer, save_fsdp_optimizer
from torch.distributed.fsdp import FullyShardedDataParallel


def made():
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    model = FullyShardedDataParallel(torch.nn.Linear(8, 8), device_id=cpu, use_orig_params=True)
    return model, torch.optim.AdamW(model.parameters())


def moments(optimizer) -> int:
    """How many elements of Adam's first moment this rank holds."""
    return sum(state["exp_avg"].numel() for state in optimizer.state.values() if "exp_avg" in state)


def resume(rank: int, port: int, folder: str, said) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    state = PartialState(cpu=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=1, state_dict_type="SHARDED_STATE_DICT")
    model, optimizer = made()
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    saved = moments(optimizer)
    save_fsdp_optimizer(plugin, state, optimizer, model, folder)
    model, optimizer = made()
    load_fsdp_optimizer(plugin, state, optimizer, model, folder)
    if rank == 0:
        said.put((moments(optimizer), saved))
    state.destroy_process_group()


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
context = multiprocessing.get_context("fork")
said = context.SimpleQueue()
with tempfile.TemporaryDirectory() as folder:
    ranks = [context.Process(target=resume, args=(rank, port, folder, said)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
loaded, saved = said.get()
print(
    f"accelerate {accelerate.__version__}\nmoments that the first rank has after loading: {loaded} of {saved}"
)
sys.exit(loaded != saved)
