"""What autograd keeps of a vision tower's forward, frozen and trained, its checkpointing on and off.

    python -m bench.frozen_towers [STACK ...]

One process on a CPU, a Qwen2-VL of 5 million parameters, one image, the language model trained and
checkpointed in every run; the bytes are counted, not sampled, and no weight among them. Writes a table of
``docs/frozen-towers.md`` and its Chinese twin.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.lab import envs, launch, pages

STACKS = ("tf457-ds0182", "tf523-ds0198")
BEGIN = "<!-- written by bench.frozen_towers -->"
HEADS = {
    "en": (
        *("transformers", "the tower", "in the graph", "kept, tower not checkpointed", "kept, checkpointed"),
        *("with vlmpatch, not checkpointed", "checkpointed"),
    ),
    "zh": (
        *("transformers", "视觉塔", "在计算图中", "保留量，视觉塔不开检查点", "保留量，开检查点"),
        *("使用 vlmpatch，不开检查点", "开检查点"),
    ),
}
WORDS = {
    "en": {True: "frozen", False: "trained", "yes": "yes", "no": "no"},
    "zh": {True: "冻结", False: "训练", "yes": "是", "no": "否"},
}


class Row(NamedTuple):
    """Bytes that are kept of a frozen or a trained tower, without and with its checkpointing."""

    release: str
    frozen: bool
    graph: bool
    bare: tuple[int, int]
    patched: tuple[int, int]


def measured(name: str) -> Iterator[Row]:
    """What a stack keeps, bare and with vlmpatch."""
    stack = envs.read_stacks()[name]
    envs.make(stack)
    release = next(p.split("==")[1] for p in stack.packages if p.startswith("transformers=="))
    bare, patched = ran(stack), ran(stack, "--patched")
    for frozen in (True, False):
        kept = [tuple(runs[frozen, tower]["bytes"] for tower in (False, True)) for runs in (bare, patched)]
        yield Row(release, frozen, bare[frozen, False]["graph"], *kept)


def ran(stack: envs.Stack, *more: str) -> dict[tuple[bool, bool], dict[str, Any]]:
    """What each setting came to, by whether the tower is frozen, and whether it is checkpointed."""
    done = launch.run(stack, ["python", "-m", "bench.frozen_towers_inside", *more], limit=300)
    found = [json.loads(line) for line in done.output.splitlines() if line.startswith('{"frozen"')]
    if done.rc != 0 or not found:
        raise RuntimeError(str(done))
    asked = [run for run in found if run["input_grads"]]  # as every framework has it
    return {(run["frozen"], run["tower"]): run for run in asked}


def main() -> None:
    """Measure, and write the table in both languages."""
    parser = argparse.ArgumentParser(prog="python -m bench.frozen_towers")
    parser.add_argument("stacks", nargs="*", default=STACKS)
    rows = [row for stack in parser.parse_args().stacks for row in measured(stack)]
    for language, heads in HEADS.items():
        words = WORDS[language]
        body = [
            (
                *(row.release, words[row.frozen], words["yes" if row.graph else "no"]),
                *(f"{kept:,}" for kept in (*row.bare, *row.patched)),
            )
            for row in rows
        ]
        page = pages.DOCS[language] / "frozen-towers.md"
        page.write_text(pages.filled(page.read_text("utf-8"), BEGIN, pages.table(heads, body)), "utf-8")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
