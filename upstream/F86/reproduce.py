"""Under sequence parallelism a Trainer that is resumed within an epoch cannot skip what it has seen.

    python reproduce.py      # 1 where it fails or skips the wrong batches, 0 where right; one process, no GPU

DeepSpeed's adapter is made as accelerate makes it, for one rank, and skipped as ``Trainer.train`` does.
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import accelerate
import deepspeed
import torch
import transformers
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPDataLoaderAdapter
from torch import distributed
from torch.utils.data import DataLoader
from transformers import trainer

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
accelerate.PartialState(cpu=True)
names = ("input_ids", "labels", "position_ids")
rows = [{name: torch.full((8,), number) for name in names} for number in range(4)]
loader = DataLoader(rows, batch_size=1)
adapter = UlyssesSPDataLoaderAdapter(loader, 0, distributed.group.WORLD, 1, torch.device("cpu"))
print(f"accelerate {accelerate.__version__}, transformers {transformers.__version__}")
try:
    resumed = trainer.skip_first_batches(adapter, 3)
except AttributeError as error:
    print(f"AttributeError: {error}")
    sys.exit(1)
left = [int(batch["input_ids"][0, 0]) for batch in resumed]
print(f"rows after three were skipped: {left}")
distributed.destroy_process_group()
sys.exit(left != [3])
