"""What ``bench.zero_step`` runs inside a stack: ``… bench.zero_step_ranks MODEL SETTINGS [--patched]``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import torch

from bench.python_calls import python_calls
from vlmpatch_lab import engines, forks, loading, models, ranks
from vlmpatch_lab.cell import WORLD, Cell
from vlmpatch_lab.ports import free_port
from vlmpatch_lab.samples import Samples

SETTLING, STEPS = 4, 10
LIMIT = 90.0


def one_rank(cell: Cell, model: Path, out: Path, rank: int, port: int) -> None:
    ranks.log_to(out.with_suffix(f".{rank}.log"))
    torch.set_num_threads(1)
    with ranks.process_group(rank, port):
        engine = engines.ENGINES[cell.engine](cell, loading.prepare(cell, model))
        (batch,) = Samples(cell, model).of(0, 0, rank)

        def step() -> None:
            engine.backward(engine.forward(batch))
            engine.step()

        for _ in range(SETTLING):
            step()
        found = {
            "seconds": min(timed(step) for _ in range(STEPS)),
            "bytes": memory(step),
            "calls": python_calls(step),
        }
        if rank == 0:
            out.write_text(json.dumps(found))


def timed(step: Any) -> float:
    """Seconds of this process, which others on the machine do not lengthen."""
    started = time.process_time()
    step()
    return time.process_time() - started


def memory(step: Any) -> int:
    """The most bytes that a step needed beside what the process held before it."""
    Path("/proc/self/clear_refs").write_text("5")  # the mark of the most begins anew
    before = held("VmRSS")
    step()
    return held("VmHWM") - before


def held(what: str) -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in status if line.startswith(f"{what}:")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("--patched", action="store_true", help="import vlmpatch first")
    asked = parser.parse_args()
    engines.preload_engine()
    if not asked.model.exists():
        models.make("qwen2_vl", asked.model, "step")
    for number, (name, (engine, zero)) in enumerate(asked.settings.items()):
        cell = Cell("qwen2_vl", engine, "full", checkpointing="off", compared=1, zero=zero)
        out = asked.model.with_name(f"{number}.json")
        forks.run(one_rank, cell, asked.model, out, world=WORLD, port=free_port(), limit=LIMIT)
        print(json.dumps({"setting": name, **json.loads(out.read_text())}), flush=True)
        out.unlink()


if __name__ == "__main__":
    main()
