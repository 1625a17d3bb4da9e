"""What was run of ``rows.py``: the tables of docs/reference/axes.md and its Chinese twin.

    python -m tests.axes tf457-ds0182 --rows dora,packed --engines zero3,ddp

runs every cell bare and with vlmpatch against one process of plain torch, adds what it found to
``data/axes.csv`` row by row, and exits 1 where vlmpatch did harm. Rows that are on file with the patches as
they are now are passed over; ``--again`` runs them too. ``make generate`` then writes the tables.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.axes import decisions
from tests.axes.rows import ENGINES, GROUPS, ROWS, cell_of
from tests.lab import cells, envs, grid, pages
from tests.lab.cells import Result
from tests.matrix import store
from vlmpatch_lab.cell import Cell

STORE = pages.ROOT / "data" / "axes.csv"
BEGIN, DECIDED = "<!-- written by tests.axes -->", "<!-- decisions of tests.axes -->"
EMPTY = "<!-- empty cells of tests.axes -->"
WHAT = ("stack", "row")
PATCHES = "patches"  # a digest beside the words of a whole row: of all patches in reach of the stack
GRID = grid.Grid(STORE, WHAT, (*ENGINES, PATCHES), "python -m tests.axes STACK")
AT_ONCE = 16  # rows of which a stack is imported once
LOW = 0.3  # relative, of 16 bits against float32
Ran = tuple[Cell, Result, Result]


def is_right(cell: Cell, result: Result) -> bool:
    """Whether it ended with the gradients and parameters of one process of plain torch."""
    if not ROWS[cell.trainer].low:
        return cells.is_equal(result, cells.GRADIENTS * ROWS[cell.trainer].amplified)
    if not result.ok or result.missing or result.difference is None:
        return False
    # Without a master copy a step is rounded away.
    kept = cell.engine.startswith("zero") or ROWS[cell.trainer].parallel == "scaled"
    moved = result.parameters or 0.0 if kept else 0.0
    return max(result.difference, moved) <= LOW


def word(cell: Cell, bare: Result, patched: Result) -> str:
    """What vlmpatch makes of it, in a word."""
    before, after = is_right(cell, bare), is_right(cell, patched)
    return grid.word(before, after, ended=not bare.ok, ends=not patched.ok)


def run(stack: str, wanted: Sequence[Cell], out: Path) -> list[Ran]:
    """Every cell that the stack can measure, bare and with vlmpatch."""
    known, trainers = envs.read_stacks()[stack], "tests.axes.training"
    measures = dict.fromkeys(cell.reference for cell in wanted)
    first = cells.run(known, [*measures, *wanted], out / "bare", trainers=trainers)
    for measure in measures:
        if not first[measure.id].ok:
            print(f"nothing to measure by: {first[measure.id]}", flush=True)
    possible = [cell for cell in wanted if first[cell.reference.id].ok]
    then = cells.run(
        known, possible, out / "patched", patched=True, reference=out / "bare", trainers=trainers
    )
    return [(cell, first[cell.id], then[cell.id]) for cell in possible]


def revision(stack: str) -> str:
    """Of all patches in reach of a stack, as they are now."""
    patches = store.patches(envs.read_stacks()[stack])
    return hashlib.sha256(json.dumps(patches, sort_keys=True).encode()).hexdigest()[:12]


def chunks(rows: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Rows that share one import of the stack."""
    left = iter(rows)
    while some := tuple(itertools.islice(left, AT_ONCE)):
        yield some


def perform(stack: str, rows: Sequence[str], engines: Sequence[str]) -> list[Ran]:
    """Run rows and put what they did on file, save cells of which it is said why they are empty."""
    empty = set[decisions.Cell]().union(*(reason.cells for reason in decisions.absent()))
    wanted = [
        cell_of(row, engine)
        for row in rows
        for engine in engines
        if engine in ROWS[row].engines and (stack, row, engine) not in empty
    ]
    if not wanted:
        return []
    with tempfile.TemporaryDirectory(prefix="axes-") as out:
        ran = run(stack, wanted, Path(out))
    with envs.locked(envs.cache_root() / "axes.lock"):
        found = GRID.read()
        for cell, bare, patched in ran:
            found.setdefault((stack, cell.trainer), {})[cell.engine] = word(cell, bare, patched)
        for row in {cell.trainer for cell, _, _ in ran}:
            if set(ROWS[row].engines) <= set(engines):
                found[stack, row][PATCHES] = revision(stack)
        GRID.save(found)
    return ran


def page(language: str) -> Path:
    """The page with the tables."""
    return pages.reference(language, "axes")


def shown(found: grid.Found) -> str:
    """A table a group; in each cell the words of all stacks, those that are many first."""
    parts = []
    for group in GROUPS:
        names = [name for name, row in ROWS.items() if row.group == group]
        body = [[f"`{name}`", *grid.of_one(found, 1, name, ENGINES)] for name in names]
        parts.append(pages.table([group, *ENGINES], body))
    return "\n\n".join(parts)


def filled(language: str) -> str:
    """The page as the record has it."""
    found = GRID.read()
    text = pages.filled(page(language).read_text("utf-8"), BEGIN, shown(found))
    reasons = decisions.shown(decisions.red(), language, decisions.owed(found))
    text = pages.filled(text, DECIDED, reasons)
    return pages.filled(text, EMPTY, decisions.shown_empty(found, language))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.axes")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--lanes", type=int, default=1, help="trainings at once; default: 1")
    parser.add_argument("--again", action="store_true", help="run what is on file, too")
    asked = parser.parse_args()
    found, now = GRID.read(), revision(asked.stack)
    known = {what for what, words in found.items() if words.get(PATCHES) == now}
    rows = [row for row in asked.rows.split(",") if asked.again or (asked.stack, row) not in known]
    performed = functools.partial(perform, asked.stack, engines=asked.engines.split(","))
    with ThreadPoolExecutor(asked.lanes) as lanes:
        ran = itertools.chain.from_iterable(lanes.map(performed, chunks(rows)))
        harmed = sum(map(reported, ran))
    return 1 if harmed else 0


def reported(ran: Ran) -> bool:
    """Print what became of a cell; whether vlmpatch did harm."""
    cell, bare, patched = ran
    said = word(cell, bare, patched)
    print(f"{said:8} {cell.trainer} {cell.engine}", flush=True)
    if said != "=":
        print(f"         bare    {ending(bare)}\n         patched {ending(patched)}", flush=True)
    return said in grid.HARM


def ending(result: Result) -> str:
    """How a cell ended, in a line."""
    return str(result).removeprefix(f"{result.id}: ")


if __name__ == "__main__":
    sys.exit(main())
