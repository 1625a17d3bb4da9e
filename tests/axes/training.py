"""One cell of the table of axes in a rank: build, train by windows of micro-batches, write down what came.

``--trainers tests.axes.training`` of ``vlmpatch_lab.run``; a cell's ``trainer`` is the name of its row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.axes import adapters, data, lifecycle, memory, objectives, parallel
from tests.axes.rows import ROWS
from vlmpatch_lab import loading, recording
from vlmpatch_lab.cell import Cell
from vlmpatch_lab.engines import Engine
from vlmpatch_lab.samples import Samples


def preload(trainer: str) -> None:
    """Nothing to import beside the stack."""


def train(cell: Cell, folder: Path, out: Path) -> dict[str, Any]:
    training = Training(cell, folder, out)
    training.run()
    return {"losses": training.losses, "digest": recording.digest(training.model)}


class Training:
    """What the parts of a row are told: the engine, its model, and what they keep between steps."""

    def __init__(self, cell: Cell, folder: Path, out: Path) -> None:
        self.cell, self.row, self.folder, self.out = cell, ROWS[cell.trainer], folder, out
        self.samples = Samples(cell, folder)
        self.measures = cell.ranks == 1  # one process that sees the samples of all ranks, in their order
        self.model, self.engine = self.made()
        self.trained = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        self.seen = [*range(cell.world)] if self.measures else [dist.get_rank()]
        self.rank = 0  # whose samples are seen
        self.losses: list[float] = []
        self.steps: list[recording.Gradients] = []
        self.kept: dict[Any, Any] = {}

    def made(self) -> tuple[Any, Engine]:
        model = adapters.ADAPTERS[self.row.adapter](loading.load(self.cell, self.folder))
        if self.row.data == "packed":
            model.config.use_cache = True  # as it is where nobody says otherwise
        if self.row.evaluated and self.measures:
            model.eval().config.use_cache = True
        if self.row.headless:
            model.lm_head.requires_grad_(False)
        if self.cell.checkpointing != "off":
            memory.MEMORY[self.row.memory](model)
        model = loading.wrapped(self.cell, model)
        alone = self.measures and self.row.parallel not in parallel.MEASURED
        return model, parallel.PARALLEL["" if alone else self.row.parallel](self.cell, model)

    def saved(self) -> Path:
        """Where the training as it is now has been saved."""
        folder = self.out.parent / "checkpoint"
        self.engine.save(folder)
        return folder

    def begin_again(self, folder: Path, **said: Any) -> None:
        """Go on from ``folder`` in a new engine around a new model; what is ``said`` DeepSpeed is told."""
        self.cell = dataclasses.replace(self.cell, config={**self.cell.config, **said})
        self.model, self.engine = self.made()
        self.engine.load(folder)

    def run(self) -> None:
        before = self.parameters()
        with self.joined():
            for step in range(self.cell.compared):
                seen = [rank for rank in self.seen if not self.has_ended(step, rank)]
                if seen:
                    lifecycle.BETWEEN[self.row.between](self, step)
                    self.one(step, seen)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in self.trained)  # ZeRO-3 shows no master copy of what is frozen
        after = self.kept.get("average") or self.parameters()
        changed = {name: value - before[name] for name, value in after.items()}
        steps = self.steps or [{}]
        torch.save({"steps": steps, "parameters": changed}, self.out)

    def parameters(self) -> recording.Gradients:
        with self.engine.gathered():
            return self.whole(recording.parameters(self.model))

    def one(self, step: int, seen: list[int]) -> None:
        """One step of the optimizer."""
        for micro in range(self.cell.accumulation):
            last = micro == self.cell.accumulation - 1
            for self.rank in seen:
                torch.manual_seed(1000 * step + 10 * micro + self.rank)  # of dropout
                with self.engine.micro_batch(last=last):
                    shares = data.DATA[self.row.data](self, step, micro, self.rank)
                    loss = objectives.OBJECTIVES[self.row.objective](self, shares)
                    if self.cell.scenario == "overflow" and (step, micro, self.rank) == (0, 0, 0):
                        loss = loss * math.inf
                    self.engine.backward(loss)
                self.losses.append(loss.item())
            if last and not self.unread:
                self.steps.append(self.gradients())
            self.engine.step(last=last)

    @property
    def unread(self) -> bool:
        """Gradients that a scale is in, or of steps that a rank does not take."""
        half = self.row.cell.get("dtype") == "float16" or self.row.parallel == "scaled"
        return half or self.cell.trainer == "join"

    def gradients(self) -> recording.Gradients:
        with self.engine.gathered():
            return self.whole(recording.gradients(self.engine, self.model))

    def whole(self, found: recording.Gradients) -> recording.Gradients:
        """What is recorded by every rank, where each has a part."""
        if self.measures or self.row.parallel not in parallel.WHOLE:
            return found
        return parallel.WHOLE[self.row.parallel](self.engine, found)

    def has_ended(self, step: int, rank: int) -> bool:
        """Rank 1 has one batch fewer, where a row is about that."""
        return self.row.between == "join" and rank == 1 and step == self.cell.compared - 1

    def joined(self) -> contextlib.AbstractContextManager[Any]:
        if self.row.between != "join" or self.measures:
            return contextlib.nullcontext()
        engine: Any = self.engine
        context: contextlib.AbstractContextManager[Any] = engine.model.join()
        return context
