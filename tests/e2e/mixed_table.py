"""What was run on mixed batches, written into docs/mixed-batches.md and its Chinese twin.

    python -m tests.e2e.mixed_table tf457-ds0182 --kinds llava,gemma3 --engines zero3,ddp --tunings full

runs every combination with vlmpatch against plain data parallel in one process, adds what it found to
``data/compat/mixed.json``, and writes the table again; with no stack it only writes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from pathlib import Path

from tests.lab import cells, envs
from tests.lab.cells import Result
from vlmpatch_lab.cell import Cell

ROOT = Path(__file__).parents[2]
STORE = ROOT / "data" / "compat" / "mixed.json"
PAGES = (ROOT / "docs" / "mixed-batches.md", ROOT / "docs" / "mixed-batches.zh-CN.md")
BEGIN, END = "<!-- written by tests.e2e.mixed_table -->", "<!-- end -->"
ENGINES = ("ddp", "ddp_unused", "zero1", "zero2", "zero3", "fsdp2")
GRADIENTS, PARAMETERS = 1e-5, 1e-3
Found = dict[str, dict[str, str]]  # "stack kind tuning pattern" -> engine -> word


def verdict(result: Result) -> str:
    """``=``: every gradient of every step and the parameters; else what it is."""
    if not result.ok:
        return "fails"
    close = (result.difference or 0.0) <= GRADIENTS and (result.parameters or 0.0) <= PARAMETERS
    return "=" if close and not result.missing and result.between_ranks == 0.0 else "differs"


def run(stack: str, wanted: list[Cell]) -> list[tuple[Cell, Result]]:
    out = Path(tempfile.mkdtemp(prefix="mixed-"))
    known = envs.read_stacks()[stack]
    measures = [cell.reference for cell in wanted]
    cells.run(known, measures, out / "right")
    patched = cells.run(known, wanted, out / "patched", patched=True, reference=out / "right")
    return [(cell, patched[cell.id]) for cell in wanted]


def table(found: Found) -> str:
    rows = ["| | " + " | ".join(ENGINES) + " |", "|---" * (len(ENGINES) + 1) + "|"]
    for name, engines in sorted(found.items()):
        rows.append(f"| {name} | " + " | ".join(engines.get(engine, "") for engine in ENGINES) + " |")
    return "\n".join(rows)


def write(found: Found) -> None:
    for page in PAGES:
        before, _, rest = page.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        page.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.mixed_table")
    parser.add_argument("stack", nargs="?", choices=envs.read_stacks())
    parser.add_argument("--kinds", default="qwen2_5_vl")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--tunings", default="full,lora")
    parser.add_argument("--patterns", default="alternating")
    asked = parser.parse_args()
    found: Found = json.loads(STORE.read_text()) if STORE.exists() else {}
    if asked.stack:
        options = (asked.kinds, asked.engines, asked.tunings, asked.patterns)
        wanted = [
            Cell(kind, engine, tuning, compared=2, pattern=pattern)
            for kind, engine, tuning, pattern in itertools.product(*(text.split(",") for text in options))
        ]
        for cell, result in run(asked.stack, wanted):
            name = f"{asked.stack} {cell.kind} {cell.tuning} {cell.pattern}"
            found.setdefault(name, {})[cell.engine] = verdict(result)
            print(f"{verdict(result):8}{result}", flush=True)
        STORE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    write(found)


if __name__ == "__main__":
    main()
