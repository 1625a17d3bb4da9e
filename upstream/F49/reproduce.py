"""After a backward that failed and was caught, the next one ends in an AssertionError under ZeRO-2.

    python reproduce.py      # 1 where it does, 0 where not; one process, no GPU

Plain torch goes on after ``zero_grad()``, as a loop that skips what does not fit into memory expects.
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
from torch import distributed

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)


class TooLarge(Exception):
    """Stands for torch.OutOfMemoryError."""


def fail(gradient: torch.Tensor) -> None:
    raise TooLarge


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(
    model=model, config=config, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
)
with_failure = model[0].register_forward_hook(lambda module, given, made: made.register_hook(fail) and None)
try:
    engine.backward(engine(torch.ones(1, 8)).mean())
except TooLarge:
    engine.zero_grad()
with_failure.remove()

said = "nothing"
try:
    engine.backward(engine(torch.ones(1, 8)).mean())
    engine.step()
except AssertionError as error:
    said = " ".join(str(error).split())
print(f"deepspeed {deepspeed.__version__}\nerror: {said}")
distributed.destroy_process_group()
sys.exit(said != "nothing")
