"""A backward that passes through a frozen network ends, or spoils, that network's own ZeRO engine.

    python reproduce.py      # 1 where it does, 0 where not; one process, no GPU

A generator learns through a discriminator that is frozen meanwhile and has an engine of its own.
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
from torch import distributed

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}


def engine_of(model: torch.nn.Module) -> deepspeed.DeepSpeedEngine:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return deepspeed.initialize(model=model, config=config, optimizer=optimizer)[0]


generator, discriminator = engine_of(torch.nn.Linear(8, 8)), engine_of(torch.nn.Linear(8, 1))
discriminator.requires_grad_(False)
said = "nothing"
try:
    generator.backward(discriminator(generator(torch.ones(1, 8))).mean())
except Exception as error:
    said = f"{type(error).__name__}: {error}"
print(f"deepspeed {deepspeed.__version__}\nerror: {said}")
distributed.destroy_process_group()
sys.exit(said != "nothing")
