"""Trains many cells in forked ranks of one process that has imported the stack.

    python -m tests.mishaps.run [--patched] [--beside DIR] --out DIR CELLS

runs inside a stack's environment and prints one JSON line a cell: how it ended, how far its weights are from
those that are right (``Cell.measures``, which run first), and whether every bit is that of the same cell in
``--beside``.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

from tests.mishaps.cell import Cell

LIMIT = 90.0  # seconds a cell may take: a rank that failed alone waits a minute for the others


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mishaps.run")
    parser.add_argument("cells", type=Path, help="a file with a cell a line")
    parser.add_argument("--patched", action="store_true", help="import vlmpatch first")
    parser.add_argument("--beside", type=Path, help="--out of the bare run")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if asked.patched:
        import vlmpatch  # noqa: F401
    from vlmpatch_lab import engines

    engines.preload_engine()
    measures = asked.beside or asked.out
    cells = [Cell.of(line) for line in asked.cells.read_text().split()]
    for measure in {} if asked.beside else dict.fromkeys(m for cell in cells for m in cell.measures):
        train(measure, asked.out / str(measure))
    for cell in cells:
        report = train(cell, asked.out / str(cell))
        if "error" not in report:
            report["off"] = min(off(asked.out / str(cell), measures / str(right)) for right in cell.measures)
            report["same"] = bool(asked.beside) and same(asked.out / str(cell), asked.beside / str(cell))
        print(json.dumps({"cell": str(cell), **report}), flush=True)


def train(cell: Cell, folder: Path) -> dict[str, Any]:
    """Fork the ranks of a cell; returns what ended it, and the states of the patches."""
    from tests.mishaps import ranks
    from vlmpatch_lab import forks
    from vlmpatch_lab.ports import free_port

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    codes = forks.run(ranks.main, cell, folder, world=cell.ranks, port=free_port(), limit=LIMIT, grace=2.0)
    written = [folder / f"rank{rank}.json" for rank in range(cell.ranks)]
    found = [json.loads(path.read_text()) if path.exists() else {} for path in written]
    errors = [report["error"] for report in found if "error" in report]
    own = [error for error in errors if "Connection" not in error]  # the other is the echo of it
    report: dict[str, Any] = {"patches": next((each["patches"] for each in found if each), {})}
    if errors or any(codes):
        report["error"] = next(iter(own or errors), f"ended with {codes}")
    return report


def off(folder: Path, measure: Path) -> float:
    """How far what moved in a cell is from what is right, as a share of what moved most; the worst rank's."""
    import torch

    right = torch.load(measure / "rank0.pt", weights_only=False)["moved"]
    most = max(float(tensor.abs().max()) for tensor in right)
    apart = [
        float((mine - theirs).abs().nan_to_num(torch.inf).max()) / most
        for path in folder.glob("rank*.pt")
        for mine, theirs in zip(torch.load(path, weights_only=False)["moved"], right, strict=True)
    ]
    return max(apart)


def same(folder: Path, other: Path) -> bool:
    """Whether every rank's losses, weights and optimizer state are those of another run, to the last bit."""
    import torch

    def values(path: Path) -> list[Any]:
        record = torch.load(path, weights_only=False)
        held = [
            torch.as_tensor(math.nan if value is None else value) for key in record for value in record[key]
        ]
        return [tensor.double() for tensor in held]  # which holds every number of the smaller kinds

    def alike(path: Path) -> bool:
        mine, theirs = values(path), values(other / path.name)
        return [tensor.shape for tensor in mine] == [tensor.shape for tensor in theirs] and all(
            torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
            for a, b in zip(mine, theirs, strict=True)
        )

    return all((other / path.name).exists() and alike(path) for path in folder.glob("rank*.pt"))


if __name__ == "__main__":
    main()
