"""Trains a model inside a module of the script's own, drops it, and says whether something keeps it.

    python -m tests.programs.freed MODEL

Prints a JSON line for each engine.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import vlmpatch  # noqa: F401  (first, as in a script)
from vlmpatch_lab import engines, forks, loading, ranks
from vlmpatch_lab.cell import Cell
from vlmpatch_lab.ports import free_port
from vlmpatch_lab.samples import make_batches

ENGINES = ("ddp", "fsdp1", "fsdp2", "zero2")
PARTITIONED = "zero.Init without an engine"


def main() -> None:
    folder = Path(sys.argv[1])
    engines.preload_engine()
    loading.preload_models([folder])
    for name in ENGINES:
        codes = forks.run(one_rank, name, folder, world=2, port=free_port(), limit=120.0)
        if any(codes):
            sys.exit(f"{name} ended with {codes}")
    if any(codes := forks.run(without_an_engine, world=2, port=free_port(), limit=120.0)):
        sys.exit(f"{PARTITIONED} ended with {codes}")


def one_rank(name: str, folder: Path, rank: int, port: int) -> None:
    """Entry of a forked rank."""
    with ranks.process_group(rank, port):
        tell(name, trained(Cell(engine=name, tuning="full", scenario="wrapper"), folder, rank), rank)


def without_an_engine(rank: int, port: int) -> None:
    """Entry of a forked rank: a model that zero.Init partitions, and one call of it."""
    with ranks.process_group(rank, port):
        engines.begin_deepspeed(Cell(engine="zero3"))
        tell(PARTITIONED, called(), rank)


def called() -> weakref.ref[Any]:
    import deepspeed
    import torch

    said = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    with deepspeed.zero.Init(config_dict_or_path=said):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    with torch.no_grad():
        model(torch.ones(1, 8))
    return weakref.ref(model)


def tell(name: str, model: weakref.ref[Any], rank: int) -> None:
    gc.unfreeze()
    for _ in range(3):
        gc.collect()
    if rank == 0:
        print(json.dumps({"engine": name, "kept": model() is not None}), flush=True)


def trained(cell: Cell, folder: Path, rank: int) -> weakref.ref[Any]:
    model = loading.prepare(cell, folder)
    engine = engines.ENGINES[cell.engine](cell, model)
    for batch in make_batches(cell, folder, rank):
        engine.backward(engine.forward(batch))
        engine.step()
    if cell.engine.startswith("zero"):
        engine.engine.destroy()  # type: ignore[attr-defined]  # as DeepSpeed asks for
    return weakref.ref(model)


if __name__ == "__main__":
    main()
