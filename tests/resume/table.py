"""What was resumed: the table of docs/reference/resumed.md and its Chinese twin.

    python -m tests.resume tf457-ds0182 --rows full,lora --engines ddp,fsdp2

runs every cell bare and with vlmpatch, adds what it found to ``data/resumed.csv`` and exits 1 where vlmpatch
did harm; ``make generate`` then writes the table. A cell holds itself against the training that was not
stopped.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab import cells, envs, grid, pages
from tests.lab.cells import Result
from vlmpatch_lab.cell import Cell

STORE = pages.ROOT / "data" / "resumed.csv"
BEGIN = "<!-- written by tests.resume -->"
WHAT = ("stack", "row")
FSDP = ("fsdp1", "fsdp2")
ENGINES = ("ddp", "zero1", "zero2", "zero3", *FSDP)
GRID = grid.Grid(STORE, WHAT, ENGINES, "python -m tests.resume STACK")
LAUNCH = {
    "VLMPATCH_LAB_GLOO": "1",  # transformers starts DeepSpeed through accelerate
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # before 4.49 it writes random states that torch 2.6 refuses
}
OTHERWISE = "Wrong: "  # how tests.lab.resumed begins, where a resumed training is not the one it was
ROWS: Mapping[str, Mapping[str, Any]] = {
    "full": {"tuning": "full"},
    "full-frozen-tower": {"tuning": "full", "scenario": "frozen"},
    "full-without-images": {"tuning": "full", "trainer": "hf_resumed_text"},
    "full-mixed": {"tuning": "full", "trainer": "hf_resumed_mixed"},
    "full-saved-whole": {"tuning": "full", "config": {"state_dict_type": "FULL_STATE_DICT"}},
    "full-saved-in-shards": {"tuning": "full", "config": {"state_dict_type": "SHARDED_STATE_DICT"}},
    "lora": {"tuning": "lora"},
    "lora-modules-to-save": {"tuning": "lora_saved"},
}
ONLY = {row: FSDP for row, said in ROWS.items() if "config" in said}  # under which a row says anything
Ran = tuple[str, Cell, Result, Result]


def cell_of(row: str, engine: str) -> Cell:
    """The training of ``row`` under ``engine``."""
    return Cell(**{"engine": engine, "trainer": "hf_resumed", "checkpointing": "off", **ROWS[row]})


def word(bare: Result, patched: Result) -> str:
    """What vlmpatch makes of it, in a word: the table's page says what each means."""
    return grid.word(bare.ok, patched.ok, ended=_ended(bare), ends=_ended(patched))


def _ended(result: Result) -> bool:
    """Whether it did not get to the end, in whatever state."""
    return not result.ok and not (result.error or "").startswith(OTHERWISE)


def run(
    stack: str, rows: Iterable[str], engines: Sequence[str], out: Path, env: Mapping[str, str] | None = None
) -> list[Ran]:
    """Every cell bare and with vlmpatch."""
    known = envs.read_stacks()[stack]
    product = itertools.product(rows, engines)
    named = [(row, cell_of(row, engine)) for row, engine in product if engine in ONLY.get(row, ENGINES)]
    every = [cell for _, cell in named]
    first = cells.run(known, every, out / "bare", env=LAUNCH)
    then = cells.run(known, every, out / "patched", patched=True, env={**LAUNCH, **(env or {})})
    return [(row, cell, first[cell.id], then[cell.id]) for row, cell in named]


def keep(stack: str, ran: Iterable[Ran]) -> None:
    """Put on file what ``stack`` did."""
    with envs.locked(envs.cache_root() / "resumed.lock"):
        found = GRID.read()
        for row, cell, bare, patched in ran:
            found.setdefault((stack, row), {})[cell.engine] = word(bare, patched)
        GRID.save(found)


def shown(found: grid.Found) -> str:
    """A row for each thing that is trained; in each cell the words of all stacks, the most frequent first."""
    body = [[f"`{row}`", *grid.of_one(found, 1, row, ENGINES)] for row in ROWS]
    return pages.table(["", *ENGINES], body)


def page(language: str) -> Path:
    """The page with the table."""
    return pages.reference(language, "resumed")


def filled(language: str) -> str:
    """The page as the record has it."""
    return pages.filled(page(language).read_text("utf-8"), BEGIN, shown(GRID.read()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.resume")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--without", default="", metavar="PATCH", help="switched off; nothing is recorded")
    asked = parser.parse_args()
    out, env = Path(tempfile.mkdtemp(prefix="resumed-")), {"VLMPATCH_DISABLE": asked.without}
    ran, harmed = run(asked.stack, asked.rows.split(","), asked.engines.split(","), out, env), 0
    if not asked.without:
        keep(asked.stack, ran)
    for row, cell, bare, patched in ran:
        said = word(bare, patched)
        harmed += said in grid.HARM
        print(f"{said:8} {row} {cell.engine}", flush=True)
        if said != "=":
            print(f"         bare    {ending(bare)}\n         patched {ending(patched)}", flush=True)
    print(f"logs: {out}")
    return 1 if harmed else 0


def ending(result: Result) -> str:
    """How a cell ended, in a line."""
    return "the same" if result.ok else " ".join((result.error or "").split())[:200]


if __name__ == "__main__":
    sys.exit(main())
