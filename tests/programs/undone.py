"""Trains eight steps; with vlmpatch, which is undone, applied again and switched off for a step on the way.

    python -m tests.programs.undone MODEL [--patched]

Prints a JSON line for each engine: its losses, which are right without any patch.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

if patched := "--patched" in sys.argv:
    import vlmpatch

import torch

from vlmpatch_lab import engines, forks, loading, ranks
from vlmpatch_lab.cell import Cell
from vlmpatch_lab.ports import free_port
from vlmpatch_lab.samples import make_batches

ENGINES = ("ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3")
STEPS = 8
MADE_WHILE_OFF = "an engine made while they are off"
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 0.01}},
    "zero_optimization": {"stage": 3},
}


def main() -> None:
    folder = Path(sys.argv[1])
    engines.preload_engine()
    loading.preload_models([folder])
    for name in ENGINES:
        codes = forks.run(one_rank, name, folder, world=2, port=free_port(), limit=120.0)
        if any(codes):
            sys.exit(f"{name} ended with {codes}")
    codes = forks.run(made_while_off, world=2, port=free_port(), limit=120.0)
    if any(codes):
        sys.exit(f"{MADE_WHILE_OFF} ended with {codes}")


def one_rank(name: str, folder: Path, rank: int, port: int) -> None:
    """Entry of a forked rank."""
    with ranks.process_group(rank, port), contextlib.ExitStack() as off:
        cell = Cell(engine=name, tuning="full", checkpointing="nonreentrant")
        model = loading.prepare(cell, folder)
        engine = engines.ENGINES[name](cell, model)
        losses = []
        for step in range(STEPS):
            if patched:
                turn(step, off)
            for batch in make_batches(cell, folder, rank):
                loss = engine.forward(batch)
                engine.backward(loss)
            engine.step()
            losses.append(round(loss.item(), 5))
        if rank == 0:
            print(json.dumps({"engine": name, "losses": losses}), flush=True)


def made_while_off(rank: int, port: int) -> None:
    """Entry of a forked rank: its model is partitioned with the patches, and its engine made without."""
    import deepspeed

    with ranks.process_group(rank, port):
        engines.begin_deepspeed(Cell(engine="zero3"))
        torch.manual_seed(0)
        with deepspeed.zero.Init(config_dict_or_path=CONFIG):
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
        with vlmpatch.disabled() if patched else contextlib.nullcontext():
            engine = deepspeed.initialize(model=model, config=CONFIG)[0]
        losses = []
        for _ in range(3):
            loss = engine(torch.ones(2, 8)).pow(2).sum()
            engine.backward(loss)
            engine.step()
            losses.append(round(loss.item(), 5))
        if rank == 0:
            print(json.dumps({"engine": MADE_WHILE_OFF, "losses": losses}), flush=True)


def turn(step: int, off: contextlib.ExitStack) -> None:
    if step == 2:
        vlmpatch.undo()
    elif step == 4:
        vlmpatch.redo()
    elif step == 6:
        off.enter_context(vlmpatch.disabled())
    elif step == 7:
        off.close()


if __name__ == "__main__":
    main()
