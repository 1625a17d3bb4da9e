"""ZeRO-3 updates a parameter that got no gradient in a step with the gradient of an earlier one.

    python reproduce.py      # 1 where it does, 0 where not; one process, no GPU

SGD without momentum and without weight decay: what gets no gradient must not move.
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
from torch import distributed

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)


class Two(torch.nn.Module):
    """Of two layers only the first runs where ``both`` is false: a vision tower and a batch of text only."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        x = self.always(x)
        return (self.sometimes(x) if both else x).square().mean()


model = Two()
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3},
    "zero_allow_untested_optimizer": True,
    "gradient_clipping": 0.0,
}
engine, *_ = deepspeed.initialize(
    model=model, config=config, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
)


def held() -> torch.Tensor:
    with deepspeed.zero.GatheredParameters([model.sometimes.weight]):
        return model.sometimes.weight.detach().clone()


def step(both: bool) -> None:
    engine.backward(engine(torch.ones(1, 8), both))
    engine.step()


step(both=True)
before = held()
step(both=False)
moved = float((held() - before).norm())
print(f"deepspeed {deepspeed.__version__}\na layer that took no part in the step moved by {moved:.1e}")
distributed.destroy_process_group()
sys.exit(moved > 0)
