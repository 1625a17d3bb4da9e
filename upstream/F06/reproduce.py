"""``checkpoint()`` without ``use_reentrant`` loses gradients, and ends DDP that searches for unused ones.

python reproduce.py      # 1 where it does, 0 where not; one process, no GPU
"""

import sys
import warnings

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

warnings.simplefilter("ignore")


class Blocks(torch.nn.Module):
    """Two checkpointed blocks behind an input that requires no gradient, such as an image."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.head = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x)
        return self.head(x).square().mean()


def lost() -> list[str]:
    model = Blocks()
    model(torch.ones(1, 8)).backward()
    return [name for name, parameter in model.named_parameters() if parameter.grad is None]


def ended() -> str:
    """What DDP says of blocks whose input does require a gradient."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = DistributedDataParallel(Blocks(), find_unused_parameters=True)
    try:
        model(torch.ones(1, 8, requires_grad=True)).backward()
    except RuntimeError as error:
        return str(error).partition(".")[0]
    finally:
        torch.distributed.destroy_process_group()
    return "nothing"


print(f"torch {torch.__version__}\nwithout a gradient: {', '.join(missing := lost()) or 'nothing'}")
print(f"DDP: {(said := ended())}")
sys.exit(bool(missing) or said != "nothing")
