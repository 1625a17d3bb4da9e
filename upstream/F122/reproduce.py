"""OSF under FSDP2: gradients are not projected.

python reproduce.py      # 1 where a gradient has a part in a direction to be kept, 0 where none has; no GPU
"""

import sys

import peft
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


def in_kept_directions(sharded: bool) -> float:
    """The largest part of the gradient of ``U_low`` in the columns of ``U_high``, as a share of it."""
    torch.manual_seed(0)
    model = Model()
    weight = model.layer.weight.detach().clone()
    tuned = peft.get_peft_model(model, peft.OSFConfig(target_modules=["layer"], effective_rank=4))
    if sharded:
        fully_shard(tuned, mesh=init_device_mesh("cpu", (1,)))
    tuned(torch.randn(4, 8)).square().sum().backward()
    gradient = next(p.grad for n, p in tuned.named_parameters() if n.endswith("U_low"))
    whole = gradient.full_tensor() if sharded else gradient
    kept = torch.linalg.svd(weight)[0][:, :4]
    share = float((kept.T @ whole).abs().max() / whole.abs().max())
    return share if share > 1e-4 else 0.0  # less is rounding


print(f"peft {peft.__version__}, torch {torch.__version__}")
shares = {"plain": in_kept_directions(sharded=False), "fully_shard": in_kept_directions(sharded=True)}
for name, share in shares.items():
    print(f"{name}: {share:.1e}")
distributed.destroy_process_group()
sys.exit(any(shares.values()))
