"""What was run on mixed batches: the table of docs/reference/mixed-batches.md and its Chinese twin.

    python -m tests.e2e.mixed_table tf457-ds0182 --kinds llava,gemma3 --engines zero3,ddp --tunings full

runs every combination with vlmpatch against plain data parallel in one process, adds what it found to
``data/mixed.csv``; ``make generate`` then writes the table. A row says with which patches its oldest word was
found; what was run before that was kept says nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from pathlib import Path
from typing import Any

from tests.axes.table import PATCHES, revision
from tests.lab import cells, envs, grid, pages
from tests.lab.cells import Result
from tests.lab.grid import Found
from vlmpatch_lab.cell import Cell

STORE = pages.ROOT / "data" / "mixed.csv"
BEGIN = "<!-- written by tests.e2e.mixed_table -->"
ENGINES = ("ddp", "ddp_unused", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")
# A unit of FSDP1 that is used gives a zero to what is not used within it, one that is not used gives nothing:
# AdamW's weight decay would tell them apart.
OPTIMIZER = {"fsdp1": "sgd"}
TUNINGS: dict[str, dict[str, Any]] = {
    "full": {"tuning": "full"},
    "lora": {"tuning": "lora"},
    "tower frozen": {"tuning": "full", "scenario": "frozen"},
    "projector only": {"tuning": "full", "scenario": "projector"},
}
# One unit in the last place of every weight moves Gemma 4's gradients by 4e-5, Gemma 3n's and
# Phi-4-multimodal's by 2e-5, Qwen3-VL's by 1e-6.
BOUNDS = {"gemma4": 1e-4, "gemma3n_heard": 1e-4, "phi4_multimodal": 1e-4}
UNUSED = "Expected to have finished reduction"
WHAT = ("stack", "kind", "tuning", "pattern")
GRID = grid.Grid(STORE, WHAT, (*ENGINES, PATCHES), "python -m tests.e2e.mixed_table STACK")


def verdict(kind: str, result: Result) -> str:
    """``=`` where it is right, or what it is instead."""
    if not result.ok:
        return "fails"
    return "=" if cells.is_equal(result, BOUNDS.get(kind, cells.GRADIENTS)) else "differs"


def run(stack: str, wanted: list[Cell]) -> list[tuple[Cell, Result]]:
    out = Path(tempfile.mkdtemp(prefix="mixed-"))
    known = envs.read_stacks()[stack]
    cells.measure(known, [cell.reference for cell in wanted], out / "right")
    patched = cells.run(known, wanted, out / "patched", patched=True, reference=out / "right")
    return [(cell, patched[cell.id]) for cell in wanted]


def never_used(stack: str, ran: list[tuple[Cell, Result]]) -> set[Cell]:
    """Cells that plain DDP ends because of parts that no batch uses: it does so with images in every one."""
    ended = [cell for cell, result in ran if not result.ok and UNUSED in (result.error or "")]
    if not ended:
        return set()
    images = {cell: dataclasses.replace(cell, pattern="images") for cell in ended}
    out = Path(tempfile.mkdtemp(prefix="mixed-"))
    bare = cells.run(envs.read_stacks()[stack], images.values(), out)
    return {cell for cell, with_images in images.items() if UNUSED in (bare[with_images.id].error or "")}


def shown(found: Found) -> str:
    rows = ["| | " + " | ".join(ENGINES) + " |", "|---" * (len(ENGINES) + 1) + "|"]
    for what, engines in sorted(found.items()):
        rows.append(
            f"| {' '.join(what)} | " + " | ".join(engines.get(engine, "") for engine in ENGINES) + " |"
        )
    return "\n".join(rows)


def page(language: str) -> Path:
    """The page with the table."""
    return pages.reference(language, "mixed-batches")


def filled(language: str) -> str:
    """The page as the record has it."""
    return pages.filled(page(language).read_text("utf-8"), BEGIN, shown(GRID.read()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.mixed_table")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--kinds", default="qwen2_5_vl")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--tunings", default="full,lora")
    parser.add_argument("--patterns", default="alternating")
    asked = parser.parse_args()
    found = GRID.read()
    options = (asked.kinds, asked.engines, asked.tunings, asked.patterns)
    names: dict[Cell, tuple[str, ...]] = {}
    for kind, engine, tuning, pattern in itertools.product(*(text.split(",") for text in options)):
        told = {**TUNINGS[tuning], "optimizer": OPTIMIZER.get(engine, "adamw")}
        cell = Cell(kind, engine, compared=2, pattern=pattern, **told)
        names[cell] = (asked.stack, kind, tuning, pattern)
    ran = run(asked.stack, [*names])
    unused = never_used(asked.stack, ran)
    words: Found = {}
    for cell, result in ran:
        word = "unused" if cell in unused else verdict(cell.kind, result)
        words.setdefault(names[cell], {})[cell.engine] = word
        print(f"{word:8}{result}", flush=True)
    merge(found, words, revision(asked.stack))
    GRID.save(found)


def merge(found: Found, words: Found, patches: str) -> None:
    """Add what was run with ``patches``; a row of which all was run is as new as they are."""
    for what, ran in words.items():
        row = found.setdefault(what, {})
        older = {engine for engine in row if engine != PATCHES} - {*ran}
        row |= ran if older else {**ran, PATCHES: patches}


if __name__ == "__main__":
    main()
