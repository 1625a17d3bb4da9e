"""Run the programs, and put on file what became of them.

    VLMPATCH_SOURCES=CLONES python -m tests.shipped [ID …] [--engines ddp,zero2]

prints each run as it begins, then a line a program and engine; adds what it found to ``data/shipped.csv``
(``make generate`` writes the page) and exits 1 where vlmpatch did harm. What is on file of the program and of
the patches as they are now is passed over; ``--again`` runs it too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.lab import grid
from tests.shipped import programs, table
from tests.shipped.programs import ENGINES, FSDP, REFERENCE, Run, Workshop
from tests.shipped.table import Line


def main() -> int:
    known, _ = programs.read()
    parser = argparse.ArgumentParser(prog="python -m tests.shipped")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--engines", default=",".join((*ENGINES, *FSDP)))
    parser.add_argument("--again", action="store_true", help="run what is on file, too")
    asked = parser.parse_args()
    chosen = [known[id_] for id_ in asked.ids or known if programs.clone_of(known[id_])]
    passed_over = set() if asked.again else table.current()
    runs = [
        (each, engine)
        for each in chosen
        for engine in each.engines
        if engine in asked.engines.split(",") and (each.id, engine) not in passed_over
    ]
    harmed = 0
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), say=lambda text: print(text, flush=True))
        for stack in dict.fromkeys(each.stack for each, _ in runs):
            lines = list(ran(workshop, stack, [run for run in runs if run[0].stack == stack]))
            table.keep(lines)
            for line in lines:
                harmed += line.word in grid.HARM
                print(
                    f"{line.word:8} {line.program} {line.engine}: bare {line.bare}; vlmpatch {line.patched}"
                    f" {line.warnings}",
                    flush=True,
                )
    return 1 if harmed else 0


def ran(workshop: Workshop, stack: str, runs: Sequence[Run]) -> Iterator[Line]:
    """Programs of a stack, bare and with vlmpatch."""
    references = {each: (each, REFERENCE) for each, _ in runs}
    keys = {each: table.key(each) for each in references}
    patched = workshop.run(stack, [*references.values(), *runs], patched=True)
    bare = workshop.run(stack, runs, patched=False)
    for program, engine in runs:
        right = patched[references[program]]
        if not right.right:
            print(f"{program.id}: its reference does not train\n{right.output[-3000:]}", flush=True)
            continue
        yield table.line_of(
            program, engine, right, bare[program, engine], patched[program, engine], keys[program]
        )


if __name__ == "__main__":
    sys.exit(main())
