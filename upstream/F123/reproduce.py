"""DDP with a static graph: a first backward in ``no_sync`` ends in an internal assertion.

python reproduce.py      # 1 where it does, 0 where it trains; one process, no GPU
"""

import sys

import torch
from torch import distributed

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1), static_graph=True)
error = "nothing"
try:
    for _ in range(3):
        with net.no_sync():
            net(torch.ones(2, 4)).sum().backward()
        net(torch.ones(2, 4)).sum().backward()
        (gradient,) = net.module.weight.grad.unique().tolist()
        error = "nothing" if gradient == 4 else f"the gradient is {gradient}, not 4"
        net.zero_grad()
except RuntimeError as ended:
    error = str(ended).partition(" at ")[0]
print(f"torch {torch.__version__}\nerror: {error}")
distributed.destroy_process_group()
sys.exit(error != "nothing")
