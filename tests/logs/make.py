"""The logs that ``explain`` is tested on, made by failing: ``python -m tests.logs.make [FAILURE …]``.

Every row of the matrix that ends in an error is run without vlmpatch on two ranks, scenarios of the field for
failures that no row ends in, and a few programs that fail for reasons of their own under torchrun. A file is
named after the failure it shows; with names, only those are made.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from tests.e2e import test_field as field
from tests.e2e import test_zero3_outside as outside
from tests.lab import cells, envs, launch
from tests.matrix import rows
from vlmpatch.tools.cases import Case
from vlmpatch_lab.cell import Cell
from vlmpatch_lab.ports import free_port

STACK = "tf457-ds0182"
HERE = Path(__file__).parent
# A row may be about another failure than the one its bare run ends in.
SHOWS = {
    "ready only once": "F3",
    "already been reduced": "F1",
    "finished reduction": "F19",
}
# By failure: cells that end in an error or with a warning; what is done outside the engine.
CELLS = {
    "D.causal-task": field.CAUSAL_TASK,
    "F6.own-calls": Cell(kind="internvl_repo", engine="none"),
    "F9.checkpoint-wrapper-zero3": field.WRAPPED_ZERO3,
    "F13.leaf": field.LEAF_LLAVA,
    "F20.checkpoint-wrapper": field.WRAPPED,
    "F30.generate": field.GENERATE,
    "F30.generate-in-step": field.IN_STEP_LLAVA,
}
OUTSIDE = {
    "F23": "made-from-scratch",
    "F24": "loaded-afterwards",
    "F25": "saved-by-the-script",
    "F26": "called-before-the-engine",
}
WAYS = ("data", "shapes", "memory", "package", "caught")  # of tests.logs.unrelated
LENGTH = 24_000  # of one log; what is in between is left out


def main(wanted: set[str]) -> int:
    stack = envs.read_stacks()[STACK]
    failing = _one_of_each(
        row
        for row in rows.read().values()
        if row.fails.startswith("error") and row.how != "script" and rows.runs_on(row, stack)
    )
    known = {f"{_shown(row)}.{row.id}": row.cell for row in failing} | CELLS
    chosen = {name: cell for name, cell in known.items() if not wanted or name.split(".")[0] in wanted}
    acts = {f"{id_}.{case}": case for id_, case in OUTSIDE.items() if not wanted or id_ in wanted}
    with tempfile.TemporaryDirectory(prefix="logs-") as folder:
        if chosen:
            cells.run(stack, chosen.values(), Path(folder))
        for name, cell in chosen.items():
            write(name, interleaved(_of_ranks(Path(folder), cell.id)))
        if acts:
            outside.perform(STACK, list(acts.values()), Path(folder), patched=False)
        for name, case in acts.items():
            write(name, interleaved(_of_ranks(Path(folder), case)))
    for way in WAYS if not wanted or "none" in wanted else ():
        command = ["torchrun", "--nproc_per_node", "2", "--master_port", str(free_port())]
        done = launch.run(stack, [*command, "-m", "tests.logs.unrelated", way], limit=120)
        write(f"none.{way}", done.output)
    return 0


def _of_ranks(folder: Path, name: str) -> list[str]:
    return [path.read_text(errors="replace") for path in sorted(folder.glob(f"**/{name}/rank*.log"))]


def _shown(row: Case) -> str:
    return next((failure for words, failure in SHOWS.items() if words in row.fails), row.failures[0])


def _one_of_each(failing: Iterable[Case]) -> list[Case]:
    """Of rows that fail alike under the same engine and trainer the first."""
    kept = {(_shown(row), row.cell.engine, row.cell.trainer): row for row in reversed(list(failing))}
    return list(kept.values())[::-1]


def write(name: str, log: str) -> None:
    """Write one log: shortened, the ranks' lines in turn as torchrun prints them."""
    text = shortened(log)
    (HERE / f"{name}.log").write_text(text)
    print(f"{name}: {len(text)} characters", flush=True)


def shortened(text: str) -> str:
    """``text`` without this machine's paths, and without its middle where it is long."""
    for path, short in (
        (str(launch.ROOT), "/repo"),
        (str(envs.cache_root()), "/env"),
        (str(Path.home()), "/home/user"),
    ):
        text = text.replace(path, short)
    text = re.sub(r"/env/[\w-]+/lib/", "/env/lib/", text)
    text = re.sub(r"/tmp/[\w./-]+", "/tmp/run", text)
    text = text.replace(os.uname().nodename, "node")
    if len(text) > LENGTH:
        text = text[: LENGTH // 2] + "\n…\n" + text[-LENGTH // 2 :]
    return text


def interleaved(logs: list[str]) -> str:
    """The lines of several ranks in turn, each with its rank."""
    lines = zip_longest(
        *([f"[rank{rank}]: {line}" for line in log.splitlines()] for rank, log in enumerate(logs))
    )
    return "\n".join(line for turn in lines for line in turn if line is not None) + "\n"


if __name__ == "__main__":
    sys.exit(main(set(sys.argv[1:])))
