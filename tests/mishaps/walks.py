"""Random walks over what a script may do with an engine: right bare and otherwise with vlmpatch is harm.

    python -m tests.mishaps.walks tf523-ds0198 --engines zero2,zero3 --count 100 --seed 0

takes every walk in plain torch, bare and with vlmpatch, counts how they end and exits 1 where vlmpatch did
harm; of what it harmed and of what stays wrong the shortest is printed, to be taken again with ``--walk``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import envs, launch
from tests.mishaps.walk import DEEDS, Walk, draw

ENGINES = ("zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")
START, LIMIT = 120.0, 5.0  # seconds: the import of a stack, and a walk
TOLERANCE = 2e-4  # of a sum of weights, at least 1
SHOWN = ("harmed", "wrong")
Trace = Sequence[Any]


@dataclass(frozen=True)
class Taken:
    """A walk and its three traces."""

    walk: Walk
    plain: Trace
    bare: Trace
    patched: Trace

    @property
    def word(self) -> str:
        """``harmed`` where the patched run leaves plain torch before the bare one does."""
        bare, patched = together(self.plain, self.bare), together(self.plain, self.patched)
        if patched < bare:
            return "harmed"
        whole = len(self.plain)
        if patched < whole:
            return "wrong"
        return "right" if bare == whole else "fixed"


def together(one: Trace, other: Trace) -> int:
    """How long two traces are the same."""
    pairs = list(zip(one, other, strict=False))
    return next((number for number, pair in enumerate(pairs) if not same(*pair)), len(pairs))


def same(one: Any, other: Any) -> bool:
    """Whether both have these weights, or ended with this error."""
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    return all(
        abs(a - b) <= TOLERANCE * max(1.0, abs(a)) or (a != a and b != b)
        for a, b in zip(one, other, strict=True)
    )


def take(stack: str, engine: str, walks: Iterable[Walk]) -> list[Taken]:
    """Take ``walks`` bare and with vlmpatch, each in one process of ``stack``."""
    known, walks = envs.read_stacks()[stack], list(walks)
    envs.make(known)
    bare, patched = _traces(known, engine, walks), _traces(known, engine, walks, "--patched")
    return [
        Taken(walk, bare[str(walk)]["plain"], bare[str(walk)]["trace"], patched[str(walk)]["trace"])
        for walk in walks
    ]


def _traces(
    stack: envs.Stack, engine: str, walks: Sequence[Walk], *options: str
) -> Mapping[str, Mapping[str, Trace]]:
    with tempfile.TemporaryDirectory(prefix="walks-") as folder:
        listed = Path(folder) / "walks"
        listed.write_text("\n".join(map(str, walks)))
        command: list[str | Path] = ["python", "-m", "tests.mishaps.walker", *options, engine, listed]
        finished = launch.run(stack, command, limit=START + LIMIT * len(walks), gloo=True)
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"walk": ')]
    if finished.rc or len(lines) != len(walks):
        raise RuntimeError(str(finished))
    return {line["walk"]: line for line in lines}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mishaps.walks")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--count", type=int, default=100, help="of walks under each engine")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--deeds", default=",".join(DEEDS), help="that walks are made of")
    parser.add_argument("--walk", type=Walk.of, help="this one alone, shown whole")
    asked = parser.parse_args()
    among = asked.deeds.split(",")
    drawn = [draw(seed, among) for seed in range(asked.seed, asked.seed + asked.count)]
    harmed = 0
    for engine in asked.engines.split(","):
        taken = take(asked.stack, engine, [asked.walk] if asked.walk else drawn)
        words = Counter(each.word for each in taken)
        print(f"{asked.stack} {engine}: {', '.join(f'{n} {word}' for word, n in words.items())}", flush=True)
        harmed += words["harmed"]
        for each in taken if asked.walk else shortest(taken):
            print(shown(each), flush=True)
    return 1 if harmed else 0


def shortest(taken: Sequence[Taken]) -> list[Taken]:
    """Of each word that is shown, the walk with the fewest deeds."""
    found = {word: [each for each in taken if each.word == word] for word in SHOWN}
    return [min(those, key=lambda each: len(each.walk.deeds)) for those in found.values() if those]


def shown(taken: Taken) -> str:
    traces = (("plain", taken.plain), ("bare", taken.bare), ("patched", taken.patched))
    lines = [f"  {taken.word}: --walk {taken.walk}"]
    return "\n".join([*lines, *(f"    {side:8}{last_of(trace, taken.plain)}" for side, trace in traces)])


def last_of(trace: Trace, plain: Trace) -> str:
    """Where a trace leaves plain torch, and what it has there."""
    where = together(plain, trace)
    if where == len(plain) == len(trace):
        return f"right, {[round(weight, 4) for weight in trace[-1]]}"
    there = trace[where] if where < len(trace) else "nothing more"
    said = there if isinstance(there, str) else str([round(weight, 4) for weight in there])
    return f"{where} of {len(plain)} right, then {said}"


if __name__ == "__main__":
    sys.exit(main())
