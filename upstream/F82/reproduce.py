"""PEFT: an adapter is not loaded into a model whose blocks are units of FSDP1, and nothing says so.

    python reproduce.py      # 1 where it is not, 0 where it is; two processes, no GPU

``accelerate.utils.fsdp_utils.load_fsdp_model``, and so HF Trainer's resuming, asks PEFT in this way: the
state of the model is gathered on the first rank only.
"""

import multiprocessing
import os
import socket
import sys

import peft
import torch
from torch import distributed
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def load(rank: int, port: int, said) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    model = peft.get_peft_model(
        torch.nn.Sequential(Block(), Block()), peft.LoraConfig(target_modules=["linear"], r=2)
    )
    saved = {name: torch.ones_like(each) for name, each in peft.get_peft_model_state_dict(model).items()}
    model = FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), use_orig_params=True
    )
    first_only = FullStateDictConfig(rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, first_only):
        peft.set_peft_model_state_dict(model, saved, adapter_name="default")
    held = [each for name, each in model.named_parameters() if "lora" in name and each.numel()]
    said.put((sum(bool((each == 1).all()) for each in held), len(held)))
    distributed.barrier()
    distributed.destroy_process_group()


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
context = multiprocessing.get_context("fork")
said = context.SimpleQueue()
ranks = [context.Process(target=load, args=(rank, port, said)) for rank in (0, 1)]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
(first, one), (second, two) = said.get(), said.get()
print(f"peft {peft.__version__}\nshards of the adapter that were loaded: {first + second} of {one + two}")
sys.exit(first + second < one + two)
