"""Run the programs, and put on file what became of them.

    VLMPATCH_SOURCES=CLONES python -m tests.shipped [ID …] [--engines ddp,zero2]

prints each run as it begins, then a line a program and engine; adds what it found to ``data/shipped.csv``
(``make generate`` writes the page) and exits 1 where vlmpatch did harm. What is on file of the program and of
the patches as they are now is passed over; so is the run without vlmpatch, where patches alone have changed.
``--again`` runs it all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.lab import grid
from tests.shipped import programs, table
from tests.shipped.programs import ENGINES, FSDP, REFERENCE, Run, Workshop
from tests.shipped.table import Bare, Line


def main() -> int:
    known, _ = programs.read()
    parser = argparse.ArgumentParser(prog="python -m tests.shipped")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--engines", default=",".join((*ENGINES, *FSDP)))
    parser.add_argument("--again", action="store_true", help="run what is on file, too")
    asked = parser.parse_args()
    chosen = [known[id_] for id_ in asked.ids or known if programs.clone_of(known[id_])]
    passed_over = set() if asked.again else table.current()
    on_file = {} if asked.again else table.bare_on_file()
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
            lines = list(ran(workshop, stack, [run for run in runs if run[0].stack == stack], on_file))
            table.keep(lines)
            for line in lines:
                harmed += line.word in grid.HARM
                print(
                    f"{line.word:8} {line.program} {line.engine}: bare {line.bare}; vlmpatch {line.patched}"
                    f" {line.warnings}",
                    flush=True,
                )
    return 1 if harmed else 0


def ran(
    workshop: Workshop, stack: str, runs: Sequence[Run], on_file: Mapping[tuple[str, str], Bare]
) -> Iterator[Line]:
    """Programs of a stack with vlmpatch, and without it where that is not on file."""
    references = {each: (each, REFERENCE) for each, _ in runs}
    keys = {each: table.key(each) for each in references}
    patched = workshop.run(stack, [*references.values(), *runs], patched=True)
    missing = [(each, engine) for each, engine in runs if (each.id, engine) not in on_file]
    bare = workshop.run(stack, missing, patched=False) if missing else {}
    for program, engine in runs:
        run, right = (program, engine), patched[references[program]]
        if not right.right:
            print(f"{program.id}: its reference does not train\n{right.output[-3000:]}", flush=True)
            continue
        before = table.bare_of(program, right, bare[run]) if run in bare else on_file[program.id, engine]
        yield table.line_of(program, engine, right, before, patched[run], keys[program])


if __name__ == "__main__":
    sys.exit(main())
