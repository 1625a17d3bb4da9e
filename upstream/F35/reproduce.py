"""A leaf module of ZeRO-3 whose input requires no gradient loses its weights before its backward.

    python reproduce.py      # 1 where it does, 0 where not; one process, no GPU

LoRA on the experts of a mixture alone: everything before them is frozen.
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
from deepspeed.utils import set_z3_leaf_modules
from torch import distributed

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)


class Experts(torch.nn.Module):
    """A frozen expert with a trained adapter behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.expert, self.adapter = torch.nn.Linear(8, 8).requires_grad_(False), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.expert(self.adapter(x))


model = torch.nn.Sequential(torch.nn.Linear(8, 8).requires_grad_(False), Experts())
set_z3_leaf_modules(model, [Experts])
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.SGD(trained, lr=0.1))
said = "nothing"
try:
    engine.backward(engine(torch.ones(1, 8)).mean())
except RuntimeError as error:
    said = str(error)
print(f"deepspeed {deepspeed.__version__}\nerror: {said}")
distributed.destroy_process_group()
sys.exit(said != "nothing")
