"""ZeRO-2 moves parameters that have no gradient, by momentum and weight decay.

    python reproduce.py      # 1 where it does, 0 where not; one process, no GPU

Every optimizer of torch passes over a parameter whose gradient is None: an expert that no token chose, a
vision tower in a step without images, a layer that is frozen from some step on.
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
from torch import distributed

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
first, second, third = (torch.nn.Linear(8, 8) for _ in range(3))
model = torch.nn.ModuleList([first, second, third])
model.forward = lambda x, everything: (third(second(first(x))) if everything else second(x)).square().mean()
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "gradient_clipping": 0.0,
}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer)


def step(everything: bool) -> None:
    engine.backward(engine(torch.ones(1, 8), everything))
    engine.step()


step(everything=True)
first.requires_grad_(False)
before = [each.weight.detach().clone() for each in (first, third)]
step(everything=False)
frozen, unused = (
    float((each.weight.detach() - old).norm()) for each, old in zip((first, third), before, strict=True)
)
print(f"deepspeed {deepspeed.__version__}")
print(
    f"moved by the second step: the frozen layer by {frozen:.1e}, the one that took no part by {unused:.1e}"
)
distributed.destroy_process_group()
sys.exit(frozen + unused > 0)
