"""A training that was stopped and resumed, held against the same one that was not, to the last bit.

HF Trainer trains to the end and leaves a checkpoint on its way. Another goes on from there, around a model
whose trained parameters are others; ``Wrong`` is raised where its losses are others than they were, or it
ends with other parameters. Runs in a rank.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

from tests.lab.field import Wrong
from vlmpatch_lab import loading, recording
from vlmpatch_lab.cell import WORLD, Cell
from vlmpatch_lab.samples import KINDS, Batch, Samples

STEPS, AT = 4, 2  # optimizer steps of the whole training, and of the checkpoint
APART = 0.125  # what is added to each trained parameter of a model that is to be overwritten
Said = Callable[[Path], dict[str, Any]]  # the arguments of a Trainer that writes to a folder
Trained = dict[str, Any]  # "losses" and "parameters"
Kind = Callable[[int], str]  # of a row, by its number: a key of ``samples.KINDS``


def mixed(number: int) -> str:
    """A step without an image on any rank, then one with an image on every rank, and so on."""
    return "image" if number // WORLD % 2 else "text"


class InOrder(transformers.Trainer):  # type: ignore[misc]
    """Takes its rows in the order in which they lie."""

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def check(cell: Cell, folder: Path, output: Path, said: Said, kind: Kind) -> None:
    """Train, resume and compare.

    Args:
        cell: what is trained.
        folder: the model's.
        output: a folder, which may be another on each rank.
        said: the arguments.
        kind: which rows have their images.
    """
    shared = [output]
    dist.broadcast_object_list(shared)
    data = _rows(Samples(cell, folder), kind)

    def train(apart: float, checkpoint: str | None) -> Trained:
        model = loading.prepare(dataclasses.replace(cell, checkpointing="off"), folder)
        move(model, apart)
        if cell.tuning != "full":
            model.enable_input_require_grads()
        settings = transformers.TrainingArguments(**said(shared[0]))
        trainer = (InOrder if kind is mixed else transformers.Trainer)(
            model, settings, data_collator=lambda rows: rows[0], train_dataset=data
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        return trained(trainer)

    compare(train, shared[0], AT)


def compare(train: Callable[[float, str | None], Trained], output: Path, at: int) -> Trained:
    """What a training to the end and another, from a checkpoint that the first left on its way, both come to.

    Args:
        train: told by how much the model is to be another, and the checkpoint, if any.
        output: where checkpoints are left.
        at: optimizer steps before the checkpoint.
    """
    right = train(0.0, None)
    importlib.import_module("accelerate.state").AcceleratorState._reset_state()
    found = train(APART, str(output / f"checkpoint-{at}"))
    if (losses := found["losses"][at:]) != right["losses"][at:]:
        raise Wrong(f"the losses after the checkpoint are {losses}, not {right['losses'][at:]}")
    ends = right["parameters"]
    other = [name for name, value in ends.items() if not torch.equal(value, found["parameters"][name])]
    if other:
        raise Wrong(f"{len(other)} of {len(ends)} parameters end otherwise, {other[0]} among them")
    return right


def move(model: Any, apart: float) -> None:
    """Make it another by so much in each parameter that is trained."""
    with torch.no_grad():
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter += apart


def trained(trainer: Any) -> Trained:
    """Losses of every step, and what the parameters are after the last."""
    from tests.lab import trainers

    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    with trainers.gathered(trainer.model):
        return {"losses": losses, "parameters": recording.parameters(trainer.model)}


def _rows(samples: Samples, kind: Kind) -> list[Batch]:
    """All of them, as the Trainer is handed them."""
    numbers = range(len(samples.ready or samples.rows))
    return [KINDS[kind(number)](samples, number) for number in numbers]
