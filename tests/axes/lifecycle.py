"""What a script does between two steps: one function each, called before every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

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
        training.begin_again()


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
    "ema": ema,
    "join": lambda training, step: None,
}
