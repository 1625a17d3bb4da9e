"""Finds the exact release in which a cell begins or ceases to fail.

    python -m tests.matrix.bisect tf447-ds0169 deepspeed 0.15.4 0.16.9 --engine zero3 --tuning lora_saved

Each release in question is laid over the stack (it comes first on the path, without what it depends
on), and the cell runs bare. Both ends run first; when they agree there is nothing to find. With
``--patch`` no cell runs: the question is what that patch's look says of the source.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

from packaging.specifiers import SpecifierSet

from tests.lab import cells, envs, launch
from tests.lab.envs import Stack
from tests.matrix import drift, judge
from vlmpatch_lab.cell import Cell


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.bisect")
    parser.add_argument("stack", choices=envs.read_stacks())
    for name in ("distribution", "low", "high"):
        parser.add_argument(name)
    parser.add_argument("--patch", help="ask this patch's look instead of running a cell")
    plain = {f.name: f.default for f in dataclasses.fields(Cell) if isinstance(f.default, (str, int))}
    for name, default in plain.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    asked = vars(parser.parse_args())
    stack, distribution = envs.read_stacks()[asked["stack"]], asked["distribution"]
    if patch := asked["patch"]:

        def says(version: str) -> str:
            return look(patch, f"{distribution}=={version}")
    else:
        cell = Cell(**{name: asked[name] for name in plain})

        def says(version: str) -> str:
            return str(run(stack, cell, f"{distribution}=={version}"))

    wanted = SpecifierSet(f">={asked['low']},<={asked['high']}")
    return 0 if find([v for v in drift.releases(distribution) if v in wanted], says) else 1


def find(span: list[str], says: Callable[[str], str]) -> tuple[str, str] | None:
    """The two neighbouring releases of ``span`` between which ``says`` changes."""

    def told(version: str) -> str:
        said = says(version)
        print(f"{version}: {said}", flush=True)
        return said

    first = told(span[0])
    if told(span[-1]) == first:
        print("the same at both ends")
        return None
    below, above = 0, len(span) - 1
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if told(span[middle]) == first else (below, middle)
    print(f"changes between {span[below]} and {span[above]}")
    return span[below], span[above]


def look(patch: str, pin: str) -> str:
    targets = drift.in_releases([pin])["patches"][patch]["targets"]
    return ", ".join(sorted({found["says"] for found in targets.values()} - {"absent"})) or "absent"


def run(stack: Stack, cell: Cell, pin: str) -> judge.Outcome:
    overlay = drift.fetched([pin])
    out = envs.cache_root() / "bisect" / f"{stack.folder.name}-{pin.replace('==', '-')}"
    env = {"PYTHONPATH": os.pathsep.join([str(overlay), str(launch.ROOT)])}
    done = cells.run(stack, cells.with_references([cell]), Path(out), env=env)
    return dataclasses.replace(judge.outcome(done[cell.id]), key="")


if __name__ == "__main__":
    sys.exit(main())
