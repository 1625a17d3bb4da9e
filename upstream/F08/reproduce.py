"""ZeRO-3 with reentrant checkpointing: a parameter that two segments use loses a gradient, or ends the run.

    python reproduce.py      # 1 where a gradient is wrong or the run ends, 0 where all are right; one process

A vision tower that is called once per image is such a module, and any in two forwards before one backward.
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad
from torch import distributed
from torch.utils.checkpoint import checkpoint


class Twice(torch.nn.Module):
    """A block that runs in two checkpointed segments, others in between."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.Linear(8, 8)
        self.others = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.block, x, use_reentrant=True)
        x = checkpoint(self.block, self.others(x), use_reentrant=True)
        return x.square().sum()


def trained(bucket: int) -> str:
    """How it ends with a ``reduce_bucket_size`` of ``bucket``."""
    torch.manual_seed(0)
    model, x = Twice(), torch.randn(4, 8, requires_grad=True)
    model(x).backward()
    right = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "reduce_bucket_size": bucket},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(
        model=model, config=config, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
    )
    try:
        engine.backward(engine(x))
    except AssertionError as error:
        return f"AssertionError {error}".strip()
    pairs = zip(model.parameters(), right, strict=True)
    wrong = sum(not torch.allclose(safe_get_full_grad(one), other) for one, other in pairs)
    return f"{wrong} of {len(right)} gradients are wrong" if wrong else "right"


distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
endings = {f"a bucket of {bucket}": trained(bucket) for bucket in (10_000, 64)}
print(f"deepspeed {deepspeed.__version__}")
print("; ".join(f"{bucket}: {ending}" for bucket, ending in endings.items()))
distributed.destroy_process_group()
sys.exit(set(endings.values()) != {"right"})
