"""Trainings drawn at random: whatever a script may say, together. Right bare and not with vlmpatch is harm.

    python -m tests.e2e.drawn tf457-ds0182 --kinds qwen2_vl,llava --count 60 --seed 0

runs each bare and with vlmpatch, held against the same samples in one process without an engine and without
checkpointing. Every training that vlmpatch harms or leaves wrong is printed, then how many ended how; exit
status 1 where it harmed one. A seed draws the same again. The tables of single axes are ``tests.axes`` and
``tests.e2e.mixed_table``; what they do not have is how their rows go together.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.e2e.mixed_table import BOUNDS, OPTIMIZER
from tests.lab import cells, envs
from tests.lab.cells import Result
from vlmpatch_lab.cell import OPTIMIZERS, PATTERNS, Cell

KINDS = "qwen2_vl,qwen2_5_vl,llava,gemma3"
ENGINES = ("ddp", "ddp_unused", "zero1", "zero2", "zero2", "zero3", "zero3", "zero3", "fsdp1", "fsdp2")
SHARDED = ("zero3", "fsdp1", "fsdp2")
TUNINGS = ("full", "full", "full", "lora", "lora", "lora", "lora_llm", "lora_saved", "adalora")
CHECKPOINTING = ("off", "default", "default", "empty", "reentrant", "reentrant", "nonreentrant")
OFTEN_NOTHING = ("",) * 8
SCENARIOS = (
    *OFTEN_NOTHING,
    *("resume", "resume-within", "extra", "frozen", "projector", "biases", "two-backwards"),
)
ZERO: dict[str, tuple[Any, ...]] = {
    "overlap_comm": (True, False),
    "reduce_bucket_size": (500, 5000),
    "offload_optimizer": ({"device": "cpu"},),
}
ZERO3: dict[str, tuple[Any, ...]] = {
    "stage3_param_persistence_threshold": (0, 100_000),
    "stage3_max_live_parameters": (0,),
    "stage3_prefetch_bucket_size": (0,),
    "offload_param": ({"device": "cpu"},),
}
CHANCE = 0.2  # that a setting is said
PART = 12  # trainings in one process, so that one that takes the process with it takes few others
# Adam divides by a gradient's size, and a step of SGD is small: both make more of what is rounding in it.
BOUND = 5e-5


def draw(chance: random.Random, kinds: Sequence[str]) -> Cell:
    """One training that an engine knows and that has a measure."""
    engine, scenario = chance.choice(ENGINES), chance.choice(SCENARIOS)
    if scenario.startswith("resume") and not engine.startswith("zero"):
        scenario = ""  # the lab's other engines do not save
    if scenario == "two-backwards" and engine.startswith("fsdp"):
        scenario = ""  # whose units have let go of their weights by the second
    tuning = chance.choice(TUNINGS)
    if tuning == "adalora" and engine in SHARDED:
        tuning = "lora"  # its penalty reads weights that are not whole
    return Cell(
        chance.choice(kinds),
        engine,
        tuning,
        forwards=2 if scenario == "two-backwards" else chance.choice((1, 1, 1, 2)),
        checkpointing=chance.choice(CHECKPOINTING),
        input_grads=chance.random() < 0.8,
        zero=dict(_settings(chance, engine)),
        config={"gradient_clipping": 0.1} if engine.startswith("zero") and chance.random() < CHANCE else {},
        compared=chance.choice((2, 3)),
        accumulation=chance.choice((2, 3) if scenario == "resume-within" else (1, 1, 2, 3)),
        pattern=chance.choice(tuple(PATTERNS)),
        optimizer=OPTIMIZER.get(engine) or chance.choice(OPTIMIZERS),
        scenario=scenario,
    )


def _settings(chance: random.Random, engine: str) -> Iterator[tuple[str, Any]]:
    known = (ZERO if engine.startswith("zero") else {}) | (ZERO3 if engine == "zero3" else {})
    for name, values in known.items():
        if chance.random() < CHANCE:
            yield name, chance.choice(values)


def drawn(seed: int, count: int, kinds: Sequence[str], ranks: Sequence[int] = (2,)) -> list[Cell]:
    """``count`` trainings, no two the same; a seed draws the same ones on whatever number of ranks."""
    chance, worlds, found = random.Random(seed), random.Random(seed), dict[str, Cell]()
    while len(found) < count:
        cell = draw(chance, kinds)
        found[cell.id] = replace(cell, world=worlds.choice(ranks))
    return list(found.values())


def word(cell: Cell, bare: Result, patched: Result) -> str:
    """``same`` and ``fixed`` are right with vlmpatch; ``harmed`` is right without it alone."""
    before, now = is_right(cell, bare), is_right(cell, patched)
    if now:
        return "same" if before else "fixed"
    return "harmed" if before else "wrong"


def is_right(cell: Cell, result: Result) -> bool:
    return result.ok and cells.is_equal(result, max(BOUND, BOUNDS.get(cell.kind, 0.0)))


def perform(stack: envs.Stack, part: Sequence[Cell], out: Path) -> dict[Cell, tuple[Result, Result]]:
    """Each of ``part`` bare and with vlmpatch, where its measure can be taken.

    Raises:
        RuntimeError: a training took the process of all of them with it.
    """
    measured = cells.measure(stack, [cell.reference for cell in part], out / "right")
    part = [cell for cell in part if measured[cell.reference.id].ok]
    bare = cells.run(stack, part, out / "bare", reference=out / "right")
    patched = cells.run(stack, part, out / "patched", reference=out / "right", patched=True)
    return {cell: (bare[cell.id], patched[cell.id]) for cell in part}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.drawn", description=__doc__)
    parser.add_argument("stack")
    parser.add_argument("--kinds", default=KINDS, help="models, comma-separated")
    parser.add_argument("--ranks", default="2", help="how many, comma-separated")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    stack, out = envs.read_stacks()[asked.stack], Path(tempfile.mkdtemp(prefix="drawn-"))
    envs.make(stack)
    ranks = [int(number) for number in asked.ranks.split(",")]
    every, counts = drawn(asked.seed, asked.count, asked.kinds.split(","), ranks), Counter[str]()
    for start in range(0, len(every), PART):
        part = every[start : start + PART]
        try:
            found = perform(stack, part, out / str(start))
        except RuntimeError as error:
            counts["not run"] += len(part)
            print(f"not run: {start} to {start + len(part) - 1}: {str(error)[-300:]}", flush=True)
            continue
        counts["without a measure"] += len(part) - len(found)
        for cell, (bare, patched) in found.items():
            counts[ended := word(cell, bare, patched)] += 1
            if ended in ("harmed", "wrong"):
                print(f"{ended}: {patched}\n    bare: {bare}", flush=True)
        print(f"{start + len(part)} of {len(every)}: {dict(counts)}", flush=True)
    return int(counts["harmed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
