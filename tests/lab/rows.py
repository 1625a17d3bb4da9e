"""Which rows each step of a training is made of, and with which weight.

The model has a number for every row and its loss is their mean, so that a step's gradient says by itself how
much every row counts in it. What the ranks were given does not matter: only what moved the weights does.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

Weights = Mapping[int, float]  # by row, in one step
CLOSE = 1e-5
PASSES = 20  # more than any training here needs


class Model(torch.nn.Module):  # type: ignore[misc]
    """A number a row; the loss is divided as a language model divides it, every row a token."""

    accepts_loss_kwargs = True

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.zeros(rows))

    def forward(self, labels: torch.Tensor, num_items_in_batch: Any = None) -> dict[str, torch.Tensor]:
        count = labels.numel() if num_items_in_batch is None else num_items_in_batch
        return {"loss": self.numbers[labels].sum() / count}


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Rows of which nobody knows the number; it dries up, so that a training without a step ends."""

    def __init__(self, rows: int) -> None:
        self.rows, self.passes = rows, PASSES

    def __iter__(self) -> Iterator[dict[str, int]]:
        self.passes -= 1
        return ({"labels": row} for row in range(self.rows if self.passes >= 0 else 0))


class Turning(Stream):
    """Every pass begins a row later than the one before, as one that ``set_epoch`` shuffles anew."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, int]]:
        return ({"labels": (row["labels"] + self.epoch) % self.rows} for row in super().__iter__())


class Steps(transformers.TrainerCallback):  # type: ignore[misc]
    """What every step took from the model's numbers, at a rate of one; the training stops after ``last``."""

    def __init__(self, model: Model, last: int = 0) -> None:
        self.found: list[Weights] = []
        self._model, self._last = model, last

    def _numbers(self) -> torch.Tensor:
        return self._model.numbers.detach().clone()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._before = self._numbers()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = self._numbers()
        moved = self._before - now
        self.found.append({int(row): float(moved[row]) for row in moved.nonzero().flatten()})
        self._before = now
        if state.global_step == self._last:
            control.should_save = control.should_training_stop = True


def trained(rows: int, streamed: bool, said: Mapping[str, Any], stopped: int = 0) -> list[Weights]:
    """Train with HF Trainer and these arguments; the weights of the rows, step by step.

    After the step ``stopped`` it stops, and another Trainer resumes it from the checkpoint.
    """
    with tempfile.TemporaryDirectory(prefix="rows-") as own:
        shared = [own]
        dist.broadcast_object_list(shared)
        (place,) = shared
        found = _trained(rows, streamed, {**said, "output_dir": place}, stopped)
        if stopped:
            checkpoint = str(Path(place, f"checkpoint-{stopped}"))
            found += _trained(
                rows, streamed, {**said, "output_dir": place}, resume_from_checkpoint=checkpoint
            )
    return found


def _trained(rows: int, streamed: bool, said: Mapping[str, Any], last: int = 0, **how: Any) -> list[Weights]:
    model = Model(rows)
    steps = Steps(model, last)
    stream = Turning if last or how else Stream  # stopped, and resumed
    data: Any = stream(rows) if streamed else [measured(row) for row in range(rows)]
    settings = transformers.TrainingArguments(
        **{**said, "learning_rate": 1.0, "optim": "sgd"}, remove_unused_columns=False
    )
    transformers.Trainer(
        model,
        settings,
        data_collator=lambda batch: {"labels": torch.tensor([row["labels"] for row in batch])},
        train_dataset=data,
        callbacks=[steps],
    ).train(**how)
    return steps.found


def measured(row: int) -> dict[str, Any]:
    """A row whose length another may have, too: ``input_ids`` is where a sampler looks."""
    return {"labels": row, "input_ids": [0] * (1 + row * 5 % 7)}


def grouped() -> dict[str, Any]:
    """The argument by which batches are of rows of about one length."""
    if hasattr(transformers.TrainingArguments, "train_sampling_strategy"):
        return {"train_sampling_strategy": "group_by_length"}
    return {"group_by_length": True}


def wrong(steps: Sequence[Weights], rows: int, sizes: Sequence[int]) -> str | None:
    """What is not so, where a pass has steps of ``sizes`` rows, each row once and as much as any other."""
    due = [*sizes] * (len(steps) // len(sizes))
    if len(due) != len(steps) or not steps:
        return f"{len(steps)} steps, {len(sizes)} to a pass"
    for number, (step, size) in enumerate(zip(steps, due, strict=True)):
        if len(step) != size:
            return f"step {number} is made of rows {sorted(step)}, where {size} were due"
        if not all(math.isclose(weight, 1 / size, abs_tol=CLOSE) for weight in step.values()):
            return f"the rows of step {number} weigh {sorted(step.values())}"
    for begin in range(0, len(steps), len(sizes)):
        of_pass = sorted(row for step in steps[begin : begin + len(sizes)] for row in step)
        if of_pass != list(range(rows)):
            return f"a pass is made of rows {of_pass}"
    return None
