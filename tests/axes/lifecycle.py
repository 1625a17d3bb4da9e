"""What a script does between two steps: one function each, called before every step."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.axes.data import images
from vlmpatch_lab import recording
from vlmpatch_lab.loading import TOWERS

if TYPE_CHECKING:
    from tests.axes.training import Training

DECAY = 0.5


def tower(training: Training, trained: bool) -> None:
    for name, parameter in training.model.named_parameters():
        if any(part in name for part in TOWERS):
            parameter.requires_grad_(trained)


def freeze(training: Training, step: int) -> None:
    if step == 1:
        tower(training, trained=False)


def unfreeze(training: Training, step: int) -> None:
    tower(training, trained=step > 0)


def toggle(training: Training, step: int) -> None:
    tower(training, trained=step % 2 == 0)


def evaluate(training: Training, step: int) -> None:
    if step == 1:
        training.model.eval()
        with torch.no_grad():
            for rank in training.seen:
                ((_, batch),) = images(training, 99, 0, rank)
                training.losses.append(training.engine.forward(batch).item())
        training.model.train()


def resume(training: Training, step: int) -> None:
    """Save, and go on in a new engine around a new model."""
    if step == 1 and not training.measures:
        training.begin_again(training.saved())


def universal(training: Training, step: int) -> None:
    """The same by way of DeepSpeed's universal checkpoint."""
    if step == 1 and not training.measures:
        folder = converted(training.saved())
        training.begin_again(folder, checkpoint={"load_universal": True})


def converted(folder: Path) -> Path:
    """What was saved in ``folder``, made universal by one rank."""
    target = folder.with_name("universal")
    if dist.get_rank() == 0:
        tool = importlib.import_module("deepspeed.checkpoint.ds_to_universal")
        saved = folder / (folder / "latest").read_text()
        words = [f"--input_folder={saved}", f"--output_folder={target / saved.name}"]
        alone = ["--num_extract_workers=1", "--num_merge_workers=1", "--inject_missing_state"]
        with mock.patch.object(sys, "argv", ["ds_to_universal", *words, *alone]):
            tool.main(tool.parse_arguments())
    dist.barrier()
    return target


def skip(training: Training, step: int) -> None:
    """A batch whose loss is thrown away: a forward, and no backward."""
    if step == 1:
        for rank in training.seen:
            ((_, batch),) = images(training, 99, 0, rank)
            training.losses.append(training.engine.forward(batch).item())


def ema(training: Training, step: int) -> None:
    """An average of the weights that follows them."""
    with training.engine.gathered():
        now = recording.parameters(training.model)
    kept: dict[str, Any] = training.kept.setdefault("average", now)
    training.kept["average"] = {name: DECAY * kept[name] + (1 - DECAY) * now[name] for name in now}


BETWEEN: dict[str, Callable[[Training, int], None]] = {
    "": lambda training, step: None,
    "freeze": freeze,
    "unfreeze": unfreeze,
    "toggle": toggle,
    "evaluate": evaluate,
    "resume": resume,
    "universal": universal,
    "skip": skip,
    "ema": ema,
    "join": lambda training, step: None,
}
