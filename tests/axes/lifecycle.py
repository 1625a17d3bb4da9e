"""What a script does between two steps: one function each, called before every step."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.axes.data import Data, images, mixed
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


def freeze_resume(training: Training, step: int) -> None:
    """The tower is frozen, and a step later the training goes on in a new engine, which freezes it too."""
    if step == 2:
        resume(training, 1)
    if step:
        tower(training, trained=False)


def checkpointing(training: Training, step: int) -> None:
    """Switched off for the second step, and on again."""
    if training.measures:
        return
    if step == 1:
        training.model.gradient_checkpointing_disable()
    else:
        training.model.gradient_checkpointing_enable()


def adapters_in_turn(training: Training, step: int) -> None:
    training.model.set_adapter("second" if step % 2 else "default")


def evaluate(training: Training, step: int, data: Data = images) -> None:
    if step == 1:
        training.model.eval()
        with torch.no_grad():
            for rank in training.seen:
                ((_, batch),) = data(training, 99, 0, rank)
                training.losses.append(training.engine.forward(batch).item())
        training.model.train()


def evaluate_mixed(training: Training, step: int) -> None:
    """On rank 0 a text, on rank 1 a picture."""
    evaluate(training, step, mixed)


def generate(training: Training, step: int) -> None:
    """Three tokens, by the model as it trains and by the model as it is evaluated."""
    if step == 1:
        for rank in training.seen:
            ((_, batch),) = images(training, 99, 0, rank)
            del batch["labels"]
            for trained in (True, False):
                training.model.train(trained)
                written = training.model.generate(
                    **batch, max_new_tokens=3, min_new_tokens=3, do_sample=False
                )
                training.losses.append(float(written[0, -3:].sum()))
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


def deepcopied(training: Training, step: int) -> None:
    """The same by a copy of the model, which is evaluated, too."""
    own = training.model
    copied: Any = training.kept.setdefault("copied", copy.deepcopy(own).eval())
    with torch.no_grad():
        for average, now in zip(copied.parameters(), own.parameters(), strict=True):
            average.lerp_(now, 1 - DECAY)
        ((_, batch),) = images(training, 99, 0, 0)
        training.losses.append(copied(**batch).loss.item())
    training.kept["average"] = recording.parameters(copied)


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
    "evaluate_mixed": evaluate_mixed,
    "freeze_resume": freeze_resume,
    "checkpointing": checkpointing,
    "adapters_in_turn": adapters_in_turn,
    "generate": generate,
    "deepcopied": deepcopied,
    "resume": resume,
    "universal": universal,
    "skip": skip,
    "ema": ema,
    "join": lambda training, step: None,
}
