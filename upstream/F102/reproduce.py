"""``torch.autograd.grad`` on what an engine returned is taken for a backward of that engine.

    python reproduce.py      # 1 where it is, 0 where not; one process, no GPU

A gradient penalty asks for the gradient of an input; nothing is added to any parameter.
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
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
engine = deepspeed.initialize(model=model, config=config, optimizer=optimizer)[0]
images = torch.ones(1, 8, requires_grad=True)
said = "nothing"
try:
    torch.autograd.grad(engine(images).sum(), images)
    engine.backward(engine(images).sum())
except Exception as error:
    said = f"{type(error).__name__}: {error}"
print(f"deepspeed {deepspeed.__version__}\nerror: {said}")
distributed.destroy_process_group()
sys.exit(said != "nothing")
