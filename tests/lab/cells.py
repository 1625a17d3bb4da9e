"""Runs cells from outside: makes what they need, launches the fast runner, reads its reports.

    python -m tests.lab.cells tf457-ds0182 --engine zero2,ddp --forwards 1,2

prints what each cell does bare and with vlmpatch, measured against the same bare run with
checkpointing off. Every option takes a list; their product is run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import envs, launch
from tests.lab.envs import Stack
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch_lab.cell import Cell, write_cells
from vlmpatch_lab.run import LIMIT

GRADIENTS, PARAMETERS = 1e-5, 1e-3  # relative; Adam divides by a gradient's size
WRONG_FORWARDS = {"F133"}  # failures of a model's own, which no comparison of engines shows
START = 120.0  # seconds the import of a stack may take on a loaded machine


@dataclass(frozen=True)
class Result:
    """What one cell did. The gradients were compared only where every rank got that far."""

    id: str
    ok: bool
    error: str | None
    tensors: int
    missing: tuple[str, ...]  # trainable, learn with checkpointing off, and get nothing here
    difference: float | None  # largest relative difference to what is right, any rank, any step compared
    between_ranks: float | None
    losses: tuple[tuple[float, ...], ...]  # of each rank
    patches: dict[str, str]  # state of every patch at the end; empty in a bare run
    digests: tuple[str | None, ...]
    log: str
    seconds: float
    by_step: tuple[float, ...] = ()  # the same of each step
    parameters: float | None = None  # of what the compared steps made of the parameters
    measured: bool = False  # it held itself against what is right, and would have failed

    def __str__(self) -> str:
        if not self.ok:
            return f"{self.id}: {' '.join((self.error or '').split())[:160]}"
        return (
            f"{self.id}: {self.tensors} tensors, {len(self.missing)} missing, "
            f"difference {self.difference}, between ranks {self.between_ranks}"
            + (f", steps {self.by_step}, parameters {self.parameters}" if self.by_step[1:] else "")
        )


def run(
    stack: Stack,
    cells: Iterable[Cell],
    out: Path,
    *,
    patched: bool = False,
    reference: Path | None = None,
    env: Mapping[str, str] | None = None,
    models: Mapping[str, Path] | None = None,
    limit: float = LIMIT,
    trainers: str = "tests.lab.trainers",
) -> dict[str, Result]:
    """Run ``cells`` in one process of ``stack``; returns the result of each by its id.

    ``models`` are checkpoints of the caller's own; without them those of the lab are made. ``limit`` is the
    seconds that a cell may take, ``trainers`` the module that knows the cells whose ``trainer`` is set.
    """
    cells = list(dict.fromkeys(cells))
    models = models or launch.checkpoints(stack, sorted({cell.kind for cell in cells}))
    out.mkdir(parents=True, exist_ok=True)
    write_cells(out / "cells.json", cells)
    command: list[str | Path] = ["python", "-m", "vlmpatch_lab.run", out / "cells.json", "--out", out]
    command += ["--trainers", trainers] if any(cell.trainer for cell in cells) else []
    command += ["--patched"] if patched else []
    command += ["--reference", reference] if reference else []
    command += ["--models", *(f"{kind}={folder}" for kind, folder in models.items())]
    command += ["--limit", str(limit)]
    finished = launch.run(stack, command, limit=START + limit * len(cells), env=env)
    results = {result.id: result for result in map(_read, _reports(finished.output))}
    if finished.rc != 0 or len(results) != len(cells) or finished.left:
        raise RuntimeError(str(finished))
    return results


def is_equal(result: Result, gradients: float = GRADIENTS) -> bool:
    """Whether all gradients (to the bound given) and parameters are those of what is right, on every rank."""
    if not result.ok or result.missing or result.between_ranks or result.difference is None:
        return False
    return result.difference <= gradients and (result.parameters or 0.0) <= PARAMETERS


def measures(cells: Iterable[Cell]) -> list[Cell]:
    """What ``cells`` are measured against, each after its own measure."""
    wanted = list(cells)
    return [cell for cell in with_references(wanted) if cell not in wanted]


def measure(
    stack: Stack, cells: Iterable[Cell], out: Path, *, models: Mapping[str, Path] | None = None
) -> dict[str, Result]:
    """Run ``cells`` as what others are held against: ``out`` is their ``reference``.

    Of vlmpatch they have what corrects a model's own forward, and no more: no engine's gradients show that.
    """
    return run(stack, cells, out, patched=True, models=models, env=without_wrong_forwards())


def without_wrong_forwards() -> dict[str, str]:
    """The environment of a measure: of vlmpatch what corrects a model's own forward, and no more."""
    entries = read(default_path()).entries.values()
    return {"VLMPATCH_DISABLE": ",".join(e.id for e in entries if not WRONG_FORWARDS & {*e.failures})}


def with_references(cells: Iterable[Cell]) -> list[Cell]:
    """``cells`` and what they are measured against, each after its own measure."""
    ordered: dict[Cell, None] = {}
    for cell in cells:
        chain = [cell, cell.reference, cell.reference.reference]
        ordered |= dict.fromkeys(reversed(chain))
    return list(ordered)


def _reports(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"id": ')]


def _read(report: dict[str, Any]) -> Result:
    ranks = report["ranks"]
    compared = report.get("gradients", {})
    return Result(
        id=report["id"],
        ok=report["ok"],
        error=report["error"],
        tensors=compared.get("tensors", 0),
        missing=tuple(compared.get("missing", ())),
        difference=compared.get("difference"),
        between_ranks=compared.get("between_ranks"),
        patches=next((rank["patches"] for rank in ranks if rank.get("patches")), {}),
        losses=tuple(tuple(rank.get("losses", ())) for rank in ranks),
        digests=tuple(rank.get("digest") for rank in ranks),
        log="".join(Path(rank["log"]).read_text(errors="replace") for rank in ranks),
        seconds=report["seconds"],
        by_step=tuple(compared.get("by_step", ())),
        parameters=compared.get("parameters"),
        measured=all(rank.get("measured", False) for rank in ranks),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.cells")
    parser.add_argument("stack", choices=envs.read_stacks())
    defaults = {f.name: f.default for f in dataclasses.fields(Cell) if isinstance(f.default, (str, int))}
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=str(default), help=f"default: {default}")
    parser.add_argument("--zero", type=json.loads, default={}, help="JSON, merged into zero_optimization")
    parser.add_argument("--config", type=json.loads, default={}, help="JSON, merged into DeepSpeed's")
    parser.add_argument("--out", type=Path, help="keep results here")
    parser.add_argument("--only", choices=["bare", "patched"], help="leave the other out")
    asked = vars(parser.parse_args())
    cells = list(_product(asked, defaults))
    stack = envs.read_stacks()[asked["stack"]]
    out = asked["out"] or Path(tempfile.mkdtemp(prefix="cells-"))
    bare = [cell.reference for cell in cells] if asked["only"] == "patched" else with_references(cells)
    for result in run(stack, bare, out / "bare").values():
        print(f"bare    {result}", flush=True)
    if asked["only"] != "bare":
        for result in run(stack, cells, out / "patched", patched=True, reference=out / "bare").values():
            print(f"patched {result}", flush=True)
    print(f"logs and gradients: {out}")


def _product(asked: dict[str, Any], defaults: dict[str, Any]) -> Iterator[Cell]:
    choices = [
        [json.loads(text.lower()) if isinstance(default, int) else text for text in asked[name].split(",")]
        for name, default in defaults.items()
    ]
    for values in itertools.product(*choices):
        fields: dict[str, Any] = dict(zip(defaults, values, strict=True))
        yield Cell(**fields, zero=asked["zero"], config=asked["config"])


if __name__ == "__main__":
    main()
