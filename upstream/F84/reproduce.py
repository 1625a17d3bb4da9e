"""Under sequence parallelism the Trainer's epochs after the first begin with an empty window.

    python reproduce.py      # 1 where one is empty, 0 where none is; one process, no GPU

DeepSpeed's adapter is made as accelerate makes it, for one rank, and read as ``Trainer.train`` does.
"""

import os
import sys
import tempfile

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
import transformers
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPDataLoaderAdapter
from torch import distributed
from torch.utils.data import DataLoader

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
row = {name: torch.arange(8) for name in ("input_ids", "labels", "position_ids")}
loader = DataLoader([row] * 4, batch_size=1)
adapter = UlyssesSPDataLoaderAdapter(loader, 0, distributed.group.WORLD, 1, torch.device("cpu"))
with tempfile.TemporaryDirectory() as folder:
    arguments = transformers.TrainingArguments(folder, use_cpu=True, report_to="none")
    trainer = transformers.Trainer(torch.nn.Linear(8, 8), arguments)
epochs = []
for _ in range(3):
    iterator = iter(adapter)
    windows = [trainer.get_batch_samples(iterator, 2, torch.device("cpu"))[0] for _ in range(2)]
    epochs.append([len(window) for window in windows])
print(f"transformers {transformers.__version__}, deepspeed {deepspeed.__version__}")
print(f"batches in the windows of three epochs: {epochs}")
distributed.destroy_process_group()
sys.exit(epochs != [[2, 2]] * 3)
