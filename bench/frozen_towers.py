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
from typing import Any

from tests.lab import envs, launch, pages

STACKS = ("tf457-ds0182", "tf523-ds0198")
BEGIN = "<!-- written by bench.frozen_towers -->"
HEADS = {
    "en": ("transformers", "the tower", "in the graph", "kept, tower not checkpointed", "kept, checkpointed"),
    "zh": ("transformers", "视觉塔", "在计算图中", "保留量,视觉塔不开检查点", "保留量,开检查点"),
}
WORDS = {
    "en": {True: "frozen", False: "trained", "yes": "yes", "no": "no"},
    "zh": {True: "冻结", False: "训练", "yes": "是", "no": "否"},
}
Row = tuple[str, bool, bool, int, int]


def measured(name: str) -> Iterator[Row]:
    """Release, frozen, in the graph, and bytes without and with checkpointing of the tower."""
    stack = envs.read_stacks()[name]
    envs.make(stack)
    done = launch.run(stack, ["python", "-m", "bench.frozen_towers_inside"], limit=300)
    found: list[dict[str, Any]] = [
        json.loads(line) for line in done.output.splitlines() if line.startswith('{"frozen"')
    ]
    if done.rc != 0 or not found:
        raise RuntimeError(str(done))
    release = next(p.split("==")[1] for p in stack.packages if p.startswith("transformers=="))
    asked = [run for run in found if run["input_grads"]]  # as every framework has it
    for frozen in (True, False):
        off, on = (next(r for r in asked if (r["frozen"], r["tower"]) == (frozen, t)) for t in (False, True))
        yield release, frozen, off["graph"], off["bytes"], on["bytes"]


def main() -> None:
    """Measure, and write the table in both languages."""
    parser = argparse.ArgumentParser(prog="python -m bench.frozen_towers")
    parser.add_argument("stacks", nargs="*", default=STACKS)
    rows = [row for stack in parser.parse_args().stacks for row in measured(stack)]
    for language, heads in HEADS.items():
        words = WORDS[language]
        body = [
            (release, words[frozen], words["yes" if graph else "no"], f"{off:,}", f"{on:,}")
            for release, frozen, graph, off, on in rows
        ]
        page = pages.DOCS[language] / "frozen-towers.md"
        page.write_text(pages.filled(page.read_text("utf-8"), BEGIN, pages.table(heads, body)), "utf-8")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
