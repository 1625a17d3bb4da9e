"""What one rank of a cell does: build, wrap, forward, backward, record. Imports the whole stack."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vlmpatch_lab.cell import BACKWARDS_APART, WORLD, Cell
from vlmpatch_lab.engines import BACKENDS, ENGINES, Engine
from vlmpatch_lab.loading import forget, prepare
from vlmpatch_lab.meters import Clock, Meter
from vlmpatch_lab.patience import stretched
from vlmpatch_lab.recording import digest, gradients, parameters
from vlmpatch_lab.samples import Batch, Samples, make_batches

Report = dict[str, Any]
frameworks: Any = None  # the module that trains the cells whose ``trainer`` is set
kept: list[Any] = []  # groups that were ended


def main(cell: Cell, model: str, folder: Path, rank: int, port: int) -> None:
    """Entry of a forked rank; writes ``rank<N>.json``, ``rank<N>.pt`` and ``rank<N>.log``."""
    log_to(folder / f"rank{rank}.log")
    report: dict[str, Any] = {"ok": False}
    try:
        with process_group(rank, port, cell.ranks, cell.device):
            report |= train(cell, Path(model), folder / f"rank{rank}.pt")
        report["ok"] = True
    except Exception as error:
        traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"
        raise SystemExit(1) from None
    finally:
        report["patches"] = states()
        (folder / f"rank{rank}.json").write_text(json.dumps(report))


def train(cell: Cell, folder: Path, out: Path) -> dict[str, Any]:
    if cell.trainer:
        if frameworks is None:
            raise RuntimeError(f"{cell.id}: no --trainers module was named")
        report: dict[str, Any] = frameworks.train(cell, folder, out)
        return report
    model = prepare(cell, folder)
    engine = ENGINES[cell.engine](cell, model)
    if cell.compared:
        return train_compared(cell, engine, model, folder, out)
    batches = make_batches(cell, folder, dist.get_rank())
    losses = []
    for step in range(cell.steps + 1):
        parts = []
        for batch in batches:
            if cell.checkpointing == "off":  # a measure, or a run that needs none
                forget(model)
            parts.append(engine.forward(batch))
        loss = torch.stack(parts).sum()
        engine.backward(loss)
        losses.append(loss.item())
        if step == 0:
            torch.save(gradients(engine, model), out)
        if cell.steps:
            engine.step()
    return {"losses": losses, "digest": digest(model) if cell.steps else None}


def train_compared(cell: Cell, engine: Engine, model: torch.nn.Module, folder: Path, out: Path) -> Report:
    """Train by windows of micro-batches; record the gradients of every step and what became of the model."""
    samples = Samples(cell, folder)
    # One process sees the samples of all ranks, in the order of the ranks.
    seen = range(cell.world) if cell.ranks == 1 else [dist.get_rank()]
    with engine.gathered():
        before = parameters(model)
    meter: Meter | Clock = Meter(model) if cell.engine == "zero3" else Clock()
    steps, losses, cost = [], [], {}
    for step in range(cell.compared):
        meter.start()
        for micro in micro_batches(cell, step):
            if micro is None:
                engine = resumed(cell, engine, folder, out.parent)
                model = engine.whole()
                continue
            last = micro == cell.accumulation - 1
            for rank in seen:
                batches = samples.of(step, micro, rank)
                with engine.micro_batch(last=last):
                    idle = idle_tower(cell, samples, batches, model)
                    parts = [*idle, *map(engine.forward, batches)]
                    apart = parts if cell.scenario in BACKWARDS_APART else [torch.stack(parts).sum()]
                    if cell.scenario == "overflow" and (step, micro, rank) == (0, 0, 0):
                        apart = [loss * math.inf for loss in apart]
                    for loss in apart:
                        engine.backward(loss)
                losses.append(sum(part.item() for part in parts))
            if last:
                # DeepSpeed reads gradients, and does not know the order that round robin puts them in.
                unread = cell.zero.get("round_robin_gradients")
                with engine.gathered():
                    steps.append({} if unread else gradients(engine, model))
            engine.step(last=last)
        cost = meter.stop()
    with engine.gathered():
        changed = {name: value - before[name] for name, value in parameters(model).items()}
        held = digest(model)
    torch.save({"steps": steps, "parameters": changed}, out)
    if cell.device != "cpu":
        cost["peak_bytes"] = torch.cuda.max_memory_allocated()
    return {"losses": losses, "digest": held, "cost": cost}


def micro_batches(cell: Cell, step: int) -> list[int | None]:
    """Those of one window; None is where the training ends, and begins again from its checkpoint."""
    window: list[int | None] = [*range(cell.accumulation)]
    stopped = {"resume": [None, *window], "resume-within": [0, None, *window]}
    return stopped.get(cell.scenario, window) if step == 1 else window


def idle_tower(
    cell: Cell, samples: Samples, batches: list[Batch], model: torch.nn.Module
) -> list[torch.Tensor]:
    """Nothing, or where the cell says so a zero that the tower has a part in."""
    if cell.scenario != "dummy-first" or any("pixel_values" in batch for batch in batches):
        return []
    tower = next(module for name, module in model.named_modules() if name.endswith("visual"))
    image = samples.image(0)
    seen: Any = tower(image["pixel_values"], grid_thw=image["image_grid_thw"])
    parts = [seen] if isinstance(seen, torch.Tensor) else seen.to_tuple()
    return [torch.stack([part.sum() for part in parts]).sum() * 0]


def resumed(cell: Cell, engine: Engine, folder: Path, out: Path) -> Engine:
    """Save, and go on in a new engine around a new model."""
    engine.save(out / "checkpoint")
    again = ENGINES[cell.engine](cell, prepare(cell, folder))
    again.load(out / "checkpoint")
    return again


def states() -> dict[str, str]:
    """What became of every patch in this rank; empty in a bare run."""
    vlmpatch = sys.modules.get("vlmpatch")
    return {name: s.state.value for name, s in vlmpatch.status().items()} if vlmpatch else {}


@contextlib.contextmanager
def process_group(rank: int, port: int, world: int = WORLD, device: str = "cpu") -> Iterator[None]:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if device != "cpu":
        torch.cuda.set_device(rank)
    dist.init_process_group(BACKENDS[device], timeout=timedelta(seconds=stretched(60)))
    yield
    # Not after an error: the other rank learns of it when this process ends. axolotl does it itself.
    if dist.is_initialized():
        dist.barrier()
        end_process_groups()


def end_process_groups() -> None:
    """As ``destroy_process_group``, and the groups' threads end with the process.

    A group of torch 2.4 waits for its threads with the interpreter's lock held; a thread that has the last
    reference to a gradient needs that lock, and both wait for ever.
    """
    kept.extend(dist.distributed_c10d._world.pg_map)
    dist.destroy_process_group()


def log_to(path: Path) -> None:
    """Send everything this process prints, from C++ too, to ``path``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
