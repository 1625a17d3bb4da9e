"""ZeRO-3 gathers each checkpointed block three times a step: forward, recompute and backward.

    python reproduce.py      # 1 where it does, 0 where twice suffice; one process, no GPU

Counted is what a step gathers, over the parameters there are. Nothing is held longer than it must be:
prefetching, reuse and persistence are off. The last layer of a block counts twice: there the recompute
stops early, before DeepSpeed would release it.
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from torch import distributed
from torch.utils.checkpoint import checkpoint

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
GATHER = "_PartitionedParameterCoordinator__all_gather_params"
gathered = 0


original = getattr(PartitionedParameterCoordinator, GATHER)


def counted(self, params, forward):
    global gathered
    gathered += sum(each.ds_numel for each in params if each.ds_status == ZeroParamStatus.NOT_AVAILABLE)
    return original(self, params, forward)


setattr(PartitionedParameterCoordinator, GATHER, counted)


class Blocks(torch.nn.Module):
    def __init__(self, checkpointing: bool) -> None:
        super().__init__()
        pairs = ([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)] for _ in range(4))
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(*pair) for pair in pairs)
        self.checkpointing = checkpointing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return x.square().mean()


def of_a_step(checkpointing: bool) -> float:
    """What the third step gathers, over the number of parameters; the trace is complete by then."""
    global gathered
    model = Blocks(checkpointing)
    names = (
        "prefetch_bucket_size",
        "max_live_parameters",
        "max_reuse_distance",
        "param_persistence_threshold",
    )
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, **{f"stage3_{name}": 0 for name in names}},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(
        model=model, config=config, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
    )
    for _ in range(3):
        gathered = 0
        engine.backward(engine(torch.ones(1, 8, requires_grad=True)))
        engine.step()
    return gathered / sum(each.ds_numel for each in model.parameters())


off, on = of_a_step(False), of_a_step(True)
print(
    f"deepspeed {deepspeed.__version__}\n"
    f"gathered in a step: {off:.2f} times, with checkpointing {on:.2f} times"
)
distributed.destroy_process_group()
sys.exit(on > off)
