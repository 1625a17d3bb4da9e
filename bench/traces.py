"""What the site's figures are drawn from: writes ``data/traces/*.csv``.

    python -m bench.traces [STACK]

Two ranks over gloo train a tiny Qwen2-VL, bare and with vlmpatch, and write down what happens in which order:
what autograd runs, what ZeRO-3 gathers and releases, which gathers two ranks begin, which gradient is used.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.traces_ranks import COLUMNS
from tests.lab import envs, launch, pages, table

STACK = "tf457-ds0182"
FOLDER = pages.ROOT / "data" / "traces"
LIMIT = 600
# Each process: what it traces, whether it imports vlmpatch, and its environment. The blank image would hide
# that a partition keeps its gradient.
PROCESSES: tuple[tuple[str, bool, Mapping[str, str]], ...] = (
    ("reentrant,gathers,ranks,stale", False, {}),
    ("gathers,ranks", True, {}),
    ("stale", True, {"VLMPATCH_DISABLE": "batches-without-images"}),
)


def main() -> None:
    stack = envs.read_stacks()[(sys.argv[1:] or [STACK])[0]]
    model = launch.checkpoint(stack, "qwen2_vl")
    found: dict[str, list[list[str]]] = {name: [] for name in COLUMNS}
    for traces, patched, env in PROCESSES:
        with tempfile.TemporaryDirectory() as folder:
            command: list[str | Path] = ["python", "-m", "bench.traces_ranks", traces, model, folder]
            finished = launch.run(stack, [*command, *(["--patched"] * patched)], limit=LIMIT, env=env)
            rows = sorted(Path(folder).glob("*.jsonl"))
            if finished.rc or not rows:
                raise RuntimeError(str(finished))
            for path in rows:
                lines = map(json.loads, path.read_text("utf-8").splitlines())
                found[path.name.partition("-")[0]] += [[str(cell) for cell in line] for line in lines]
    for name, measured in found.items():
        table.write(FOLDER / f"{name}.csv", COLUMNS[name], measured)
        print(f"{name}: {len(measured)} lines")


if __name__ == "__main__":
    main()
