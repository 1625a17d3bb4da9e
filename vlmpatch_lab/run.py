"""The fast runner: many small two-rank trainings after one import of the stack.

    python -m vlmpatch_lab.run --models KIND=FOLDER --out DIR [--patched] [--reference DIR] CELLS.json

runs inside a stack's environment from the root of the clone. ``CELLS.json`` is a list of cells (the
fields of ``Cell``). Each cell forks two ranks that meet over gloo; one JSON line a cell goes to
standard output. Importing costs ten times what a cell costs, so all cells of a process share one
import, which is why bare and patched cells need separate processes: ``--patched`` imports vlmpatch
before anything else, as a user would.

``--reference`` names the ``--out`` folder of a bare run that holds what is right for these cells
(``Cell.reference``); gradients are compared with those (``compare.py`` says how). Without it the cells
of this run are looked up in ``--out`` itself.

Ranks are ``multiprocessing`` processes that return normally: whatever goes wrong while a rank ends
shows in its exit code, and the runner reports it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from vlmpatch_lab.cell import Cell, read_cells

LIMIT = 90.0  # seconds a cell may take


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m vlmpatch_lab.run")
    parser.add_argument("cells", type=Path)
    parser.add_argument("--models", nargs="+", required=True, metavar="KIND=FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--patched", action="store_true", help="import vlmpatch first")
    parser.add_argument("--reference", type=Path, help="--out of the bare run; default: this run's")
    parser.add_argument("--make", action="store_true", help="make the checkpoints that are not there")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds a cell may take")
    parser.add_argument("--trainers", metavar="MODULE", help="what knows the frameworks that cells name")
    asked = parser.parse_args()
    models = dict(pair.split("=", 1) for pair in asked.models)
    if asked.patched:
        import vlmpatch  # noqa: F401
    started = time.monotonic()
    from vlmpatch_lab import compare, engines, loading, ranks

    if asked.make:
        make_missing(models)
    if asked.trainers:
        ranks.frameworks = importlib.import_module(asked.trainers)
        for trainer in {cell.trainer for cell in read_cells(asked.cells)} - {""}:
            ranks.frameworks.preload(trainer)
    if asked.trainers or any(cell.engine.startswith("zero") for cell in read_cells(asked.cells)):
        engines.preload_engine()
    loading.preload_models(map(Path, models.values()))
    print(f"imported after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    for cell in read_cells(asked.cells):
        started = time.monotonic()
        folder = asked.out / cell.id
        report = {
            "id": cell.id,
            "patched": asked.patched,
            "ranks": run(cell, models[cell.kind], folder, asked.limit),
        }
        report["ok"] = all(rank["ok"] for rank in report["ranks"])
        report["error"] = first_cause(report["ranks"])
        if report["ok"]:
            right = (asked.reference or asked.out) / cell.reference.id
            report["gradients"] = compare.folders(folder, right if any(right.glob("rank*.pt")) else None)
        report["seconds"] = round(time.monotonic() - started, 2)
        print(json.dumps(report), flush=True)


def make_missing(models: dict[str, str]) -> None:
    """Make the checkpoints whose folders are not there, from their configuration alone."""
    from vlmpatch_lab import models as made

    for kind, folder in models.items():
        if not Path(folder).exists():
            made.make(kind, Path(folder))


def run(cell: Cell, model: str, folder: Path, limit: float = LIMIT) -> list[dict[str, Any]]:
    """Fork the ranks of one cell; returns what each reports."""
    from vlmpatch_lab import forks, ranks
    from vlmpatch_lab.ports import free_port

    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.iterdir():
        stale.unlink()
    codes = forks.run(ranks.main, cell, model, folder, world=cell.ranks, port=free_port(), limit=limit)
    return [_outcome(code, folder, rank) for rank, code in enumerate(codes)]


def _outcome(code: int | None, folder: Path, rank: int) -> dict[str, Any]:
    written = folder / f"rank{rank}.json"
    outcome: dict[str, Any] = json.loads(written.read_text()) if written.exists() else {"ok": False}
    if code and outcome["ok"]:
        outcome |= {"ok": False, "error": f"ended with exit code {code} after its work"}
    elif not outcome["ok"]:
        outcome.setdefault("error", f"ended with exit code {code}; see rank{rank}.log")
    outcome["log"] = str(folder / f"rank{rank}.log")
    return outcome


def first_cause(outcomes: list[dict[str, Any]]) -> str | None:
    """The error that is not the echo of the other rank's end."""
    errors = [outcome["error"] for outcome in outcomes if not outcome["ok"]]
    echoes = ("Connection closed by peer", "Connection reset", "exit code -9", "Connection refused")
    own = [error for error in errors if not any(echo in error for echo in echoes)]
    return next(iter(own or errors), None)


if __name__ == "__main__":
    main()
