"""ZeRO-2 counts only the last of several ``engine.backward`` calls before one ``engine.step``.

python reproduce.py      # 1 where the step is not that of the sum, 0 where it is; one process, no GPU
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
from torch import distributed

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1, bias=False)
inputs = (torch.ones(1, 8), torch.arange(8.0)[None])
before = model.weight.detach().clone()
right = 0.1 * sum(inputs)  # the step of plain torch
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "gradient_clipping": 0.0,
}
engine, *_ = deepspeed.initialize(
    model=model, config=config, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
)
for each in inputs:  # two losses, a backward of its own for each
    engine.backward(engine(each).sum())
engine.step()
moved = before - model.weight.detach()
off = float((moved - right).norm() / right.norm())
print(f"deepspeed {deepspeed.__version__}\nthe step is {off:.0%} off that of both losses")
distributed.destroy_process_group()
sys.exit(off > 1e-5)
