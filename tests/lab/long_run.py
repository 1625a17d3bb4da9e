"""A training of some hundred optimizer steps inside a cell, and what its process holds on the way.

``--trainers tests.lab.long_run`` of ``vlmpatch_lab.run``: cells whose ``trainer`` is ``long``. LoRA has
dropout; the seeds are the same with checkpointing and without, so the parameters must be, too.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vlmpatch_lab import engines, loading, recording
from vlmpatch_lab.cell import Cell
from vlmpatch_lab.meters import Meter
from vlmpatch_lab.samples import Samples

SAMPLED = 20  # steps between two looks
DROPOUT = 0.1


def preload(trainer: str) -> None:
    """Nothing to import beside the stack."""


def train(cell: Cell, folder: Path, out: Path) -> dict[str, Any]:
    model = loading.prepare(cell, folder)
    add_dropout(model)
    engine = engines.ENGINES[cell.engine](cell, model)
    samples = Samples(cell, folder)
    meter = Meter(model) if cell.engine == "zero3" else None
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)
    losses, held = [], []
    for step in range(cell.compared):
        for micro in range(cell.accumulation):
            last = micro == cell.accumulation - 1
            with engine.micro_batch(last=last):
                parts = [engine.forward(batch) for batch in samples.of(step, micro, rank)]
                loss = torch.stack(parts).sum()
                engine.backward(loss)
            if step == cell.compared - 1 and last:
                torch.save({"steps": [recording.gradients(engine, model)]}, out)
            engine.step(last=last)
        losses.append(loss.item())
        if step % SAMPLED == SAMPLED - 1:
            held.append(holdings(meter))
    return {"losses": losses, "digest": recording.digest(model), "held": held}


def add_dropout(model: torch.nn.Module) -> None:
    """What ``lora_dropout`` in a configuration does."""
    for module in model.modules():
        dropout = getattr(module, "lora_dropout", None)
        if isinstance(dropout, torch.nn.ModuleDict):
            for name in dropout:
                dropout[name] = torch.nn.Dropout(DROPOUT)


def holdings(meter: Meter | None) -> dict[str, Any]:
    """What this process holds: bytes in memory, threads, open files, tensors, gathered parameters."""
    gc.collect()
    with open("/proc/self/statm") as handle:
        pages = int(handle.read().split()[1])
    tensors = sum(isinstance(held, torch.Tensor) for held in gc.get_objects())
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "tensors": tensors,
        "gathered": meter.left() if meter else [],
    }
