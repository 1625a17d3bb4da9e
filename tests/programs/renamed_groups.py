"""Three steps under ZeRO-3 with a DeepSpeed whose optimizer has other names: see ``test_new_release.py``.

    torchrun -m tests.programs.renamed_groups FOLDER [--patched]

A module whose file FOLDER has comes from there. Prints the losses as JSON; with ``--patched`` also what
became of the patch that reads the old name.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])


class Renamed:
    """A finder of what FOLDER has."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        file = FOLDER.joinpath(*name.split(".")).with_suffix(".py")
        return spec_from_file_location(name, file) if file.is_file() else None


sys.path.insert(0, str(FOLDER))  # for the version that pip would have recorded
sys.meta_path.insert(0, Renamed)
if patched := "--patched" in sys.argv:
    import vlmpatch

import deepspeed  # noqa: E402  # after the finder
import torch  # noqa: E402


class Pair(torch.nn.Module):  # type: ignore[misc]
    """Two layers, of which the second is used in the first step alone."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.once = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: Any, both: bool) -> Any:
        x = self.always(x)
        return (self.once(x) if both else x).pow(2).mean()


def main() -> None:
    torch.manual_seed(0)
    engine, *_ = deepspeed.initialize(
        model=Pair(),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 3},
            "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        },
    )
    losses = []
    for step in range(3):
        loss = engine(torch.ones(1, 4), both=step == 0)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    said = str(vlmpatch.status()["zero3-stale-gradients"].reason) if patched else ""
    print(json.dumps({"version": deepspeed.__version__, "losses": losses, "said": said}))


main()
