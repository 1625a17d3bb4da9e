"""What was run of ``cell.py``: the table of docs/reference/mishaps.md and its Chinese twin.

    python -m tests.mishaps.table tf457-ds0182 --mishaps nan-loss-skipped --engines zero1,zero2

runs every cell bare and with vlmpatch, adds what it found to ``data/mishaps.csv`` and exits 1 where vlmpatch
did harm; ``make generate`` then writes the table. It adds a lot at a time: ``--missing`` goes on with a run
that was cut off.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab import envs, grid, launch, pages
from tests.lab.grid import Found
from tests.mishaps.cell import ACCUMULATION, ENGINES, MISHAPS, Cell
from tests.mishaps.run import LIMIT

STORE = pages.ROOT / "data" / "mishaps.csv"
BEGIN = "<!-- written by tests.mishaps.table -->"
WHAT = ("stack", "mishap", "accumulation")
GRID = grid.Grid(STORE, WHAT, ENGINES, "python -m tests.mishaps.table STACK")
START = 120.0  # seconds the import of a stack may take on a loaded machine
LOT = 100  # cells that are run, bare and patched, before they are put on record
RIGHT, LOW = 1e-5, 2e-2  # of what moved most; LOW in half precision, against a measure in float32
Report = dict[str, Any]


def is_right(cell: Cell, report: Report) -> bool:
    """Whether a cell ended with the weights that plain torch would have in one process."""
    low = cell.engine.endswith(("bf16", "fp16"))
    return "error" not in report and report["off"] <= (LOW if low else RIGHT)


def word(cell: Cell, bare: Report, patched: Report) -> str:
    """What vlmpatch makes of it, in a word: the table's page says what each means."""
    before, after = is_right(cell, bare), is_right(cell, patched)
    after = after and (patched["same"] or not before)
    return grid.word(before, after, ended="error" in bare, ends="error" in patched)


def run(
    stack: str, cells: Sequence[Cell], out: Path, env: Mapping[str, str] | None = None
) -> list[tuple[Cell, Report, Report]]:
    """Every cell with its report bare and patched."""
    first = bare(stack, cells, out)
    then = patched(stack, cells, out, env)
    return [(cell, first[str(cell)], then[str(cell)]) for cell in cells]


def bare(stack: str, cells: Sequence[Cell], out: Path) -> dict[str, Report]:
    """The reports of ``cells`` without vlmpatch, by their names; what is right for them stays in ``out``."""
    return _reports(stack, cells, out, ["--out", str(out / "bare")], {})


def patched(
    stack: str, cells: Sequence[Cell], out: Path, env: Mapping[str, str] | None = None
) -> dict[str, Report]:
    """The same with vlmpatch, held against what is right and against the bare run, where there was one."""
    more = ["--patched", "--beside", str(out / "bare"), "--out", str(out / "patched")]
    return _reports(stack, cells, out, more, env or {})


def _reports(
    stack: str, cells: Sequence[Cell], out: Path, more: Sequence[str], env: Mapping[str, str]
) -> dict[str, Report]:
    known, listed = envs.read_stacks()[stack], out / "cells"
    envs.make(known)
    out.mkdir(parents=True, exist_ok=True)
    listed.write_text("\n".join(map(str, cells)))
    command = ["python", "-m", "tests.mishaps.run", str(listed), *more]
    finished = launch.run(known, command, limit=START + 2 * LIMIT * len(cells), env=env)
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"cell": ')]
    if len(lines) != len(cells):
        raise RuntimeError(str(finished))
    return {report["cell"]: report for report in lines}


def shown(found: Found) -> str:
    """One row a mishap; in each cell the words of all stacks and accumulations, those that are many first."""
    body = [[f"`{mishap}`", *grid.of_one(found, 1, mishap, ENGINES)] for mishap in MISHAPS]
    return pages.table(["", *ENGINES], body)


def page(language: str) -> Path:
    """The page with the table."""
    return pages.reference(language, "mishaps")


def filled(language: str) -> str:
    """The page as the record has it."""
    return pages.filled(page(language).read_text("utf-8"), BEGIN, shown(GRID.read()))


def cells_of(mishaps: Iterable[str], engines: Iterable[str], accumulation: Iterable[int]) -> list[Cell]:
    """Those of their product that say anything."""
    every = (Cell(*named) for named in itertools.product(mishaps, engines, accumulation))
    return [cell for cell in every if cell.possible]


def unrecorded(stack: str, cells: Iterable[Cell]) -> list[Cell]:
    """Those of which the record says nothing."""
    found = GRID.read()
    return [cell for cell in cells if cell.engine not in found.get(row(stack, cell), {})]


def row(stack: str, cell: Cell) -> tuple[str, ...]:
    return stack, cell.mishap, str(cell.accumulation)


def record(stack: str, words: Mapping[Cell, str]) -> None:
    found = GRID.read()
    for cell, said in words.items():
        found.setdefault(row(stack, cell), {})[cell.engine] = said
    GRID.save(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mishaps.table")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--mishaps", default=",".join(MISHAPS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--accumulation", default=",".join(map(str, ACCUMULATION)))
    parser.add_argument("--without", default="", metavar="PATCH", help="switched off; nothing is recorded")
    parser.add_argument("--missing", action="store_true", help="only what is not on record")
    asked = parser.parse_args()
    accumulation = map(int, asked.accumulation.split(","))
    cells = cells_of(asked.mishaps.split(","), asked.engines.split(","), accumulation)
    if asked.missing:
        cells = unrecorded(asked.stack, cells)
    out, env = Path(tempfile.mkdtemp(prefix="mishaps-")), {"VLMPATCH_DISABLE": asked.without}
    harmed = 0
    for start in range(0, len(cells), LOT):
        ran = run(asked.stack, cells[start : start + LOT], out / str(start), env)
        words = {cell: word(cell, *reports) for cell, *reports in ran}
        for cell, first, then in ran:
            print(f"{words[cell]:8} {cell}")
            print(f"         bare    {ending(first)}\n         patched {ending(then)}", flush=True)
        harmed += sum(said in grid.HARM for said in words.values())
        if not asked.without:
            record(asked.stack, words)
    return 1 if harmed else 0


def ending(report: Report) -> str:
    return " ".join(report["error"].split())[:200] if "error" in report else f"{report['off']:.2g} off"


if __name__ == "__main__":
    sys.exit(main())
