"""LoRA with modules_to_save under FSDP1: the adapter's state dict gathers, on the rank that saves alone.

    python reproduce.py      # 1 where it does, 0 where not; two processes, no GPU

All ranks gather the weights of the model; the first one, which writes the file, then asks PEFT for the
adapter's part of them, and the second one has nothing left to do.
"""

import multiprocessing
import os
import socket
import sys
from datetime import timedelta

import peft
import torch
from torch import distributed
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def save(rank: int, port: int, said) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    config = peft.LoraConfig(target_modules=["body"], modules_to_save=["head"])
    model = peft.get_peft_model(Model(), config)
    head = model.base_model.model.head
    cpu = torch.device("cpu")
    head.modules_to_save["default"] = FullyShardedDataParallel(
        head.modules_to_save["default"], device_id=cpu, use_orig_params=True
    )
    whole = FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True)
    with FullyShardedDataParallel.state_dict_type(
        whole, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)
    ):
        weights = whole.state_dict()
        if rank == 0:
            try:
                peft.get_peft_model_state_dict(model, weights)
            except Exception:
                said.put("waits for the others")
            else:
                said.put("needs nobody else")


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
said = multiprocessing.get_context("fork").SimpleQueue()
ranks = [multiprocessing.get_context("fork").Process(target=save, args=(rank, port, said)) for rank in (0, 1)]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
words = said.get()
print(f"peft {peft.__version__}, torch {torch.__version__}\nthe rank that saves {words}")
sys.exit(words != "needs nobody else")
