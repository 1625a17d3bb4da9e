"""PEFT: the adapter of a model whose blocks are units of FSDP1 has no tensor to be saved.

    python reproduce.py      # 1 where it has none, 0 where it has all; one process, no GPU

``Trainer.save_model`` and ``accelerate.utils.fsdp_utils.save_fsdp_model`` ask PEFT in this way.
"""

import sys

import peft
import torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
model = peft.get_peft_model(
    torch.nn.Sequential(Block(), Block()), peft.LoraConfig(target_modules=["linear"], r=2)
)
wanted = len(peft.get_peft_model_state_dict(model))
model = FullyShardedDataParallel(
    model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), use_orig_params=True
)
with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    saved = len(peft.get_peft_model_state_dict(model))
print(f"peft {peft.__version__}\ntensors of the adapter that are saved: {saved} of {wanted}")
distributed.destroy_process_group()
sys.exit(saved != wanted)
