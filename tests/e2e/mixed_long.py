"""Two hundred optimizer steps on rows with and without images, held against the same rows in one process.

    python -m tests.e2e.mixed_long tf457-ds0182 [--engines zero2] [--tunings lora] [--accumulation 2]

trains a tiny model on two ranks with vlmpatch and adds what came of it to ``data/mixed_long.csv``, from which
``make generate`` writes a table of ``docs/mixed-batches.md`` and its Chinese twin.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.lab import cells, envs, pages, table
from tests.lab.cells import Result
from vlmpatch_lab.cell import Cell

STORE = pages.ROOT / "data" / "mixed_long.csv"
BEGIN = "<!-- written by tests.e2e.mixed_long -->"
KIND, STEPS = "qwen2_5_vl", 200
ENGINES, TUNINGS = ("ddp_unused", "zero2", "zero3"), ("lora", "full")
LIMIT = 600.0  # seconds a cell may take
WHAT = ("stack", "engine", "tuning", "accumulation")
COLUMNS = (*WHAT, "parameters", "gradients")
Found = dict[tuple[str, ...], tuple[str, str]]  # WHAT -> what the table says of it
SAME = "the same bits"
HEADS = {
    "en": ("", "parameters after 200 steps", "gradients of the worst step"),
    "zh": ("", "200 步后的参数", "最差一步的梯度"),
}
SAME_IN = {"en": SAME, "zh": "逐位相同"}


def wanted(engines: Sequence[str], tunings: Sequence[str], accumulation: int = 1) -> list[Cell]:
    return [
        Cell(KIND, engine, tuning, compared=STEPS, accumulation=accumulation, pattern="mixed")
        for engine, tuning in itertools.product(engines, tunings)
    ]


def run(stack: str, asked: list[Cell], out: Path) -> dict[str, Result]:
    known = envs.read_stacks()[stack]
    cells.run(known, [cell.reference for cell in asked], out / "right", limit=LIMIT)
    return cells.run(known, asked, out / "patched", patched=True, reference=out / "right", limit=LIMIT)


def words(result: Result) -> tuple[str, str]:
    if not result.ok:
        return f"`{' '.join((result.error or '').split())[:60]}`", ""
    if result.missing or result.between_ranks:
        return f"{len(result.missing)} without a gradient", f"{result.between_ranks:.0e} between ranks"
    return _size(result.parameters), _size(result.difference)


def _size(value: float | None) -> str:
    return SAME if value == 0.0 else f"{value:.0e}"


def read(path: Path = STORE) -> Found:
    """What was run.

    Raises:
        table.Broken: the file is not whole.
    """
    lines = table.read(path, COLUMNS, "python -m tests.e2e.mixed_long STACK")
    return {tuple(line[name] for name in WHAT): (line["parameters"], line["gradients"]) for _, line in lines}


def save(found: Found, path: Path = STORE) -> None:
    table.write(path, COLUMNS, [(*what, *said) for what, said in sorted(found.items())])


def shown(found: Found, language: str) -> str:
    heads = HEADS[language]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (stack, engine, tuning, accumulation), said in sorted(found.items()):
        more = f", {accumulation} micro-batches" if accumulation != "1" else ""
        rows.append(f"| {stack} {engine} {tuning}{more} | {' | '.join(said)} |")
    return "\n".join(rows).replace(SAME, SAME_IN[language])


def page(language: str) -> Path:
    """The page with the table."""
    return pages.DOCS[language] / "mixed-batches.md"


def filled(language: str) -> str:
    """The page as the record has it."""
    return pages.filled(page(language).read_text("utf-8"), BEGIN, shown(read(), language))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.mixed_long")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--tunings", default=",".join(TUNINGS))
    parser.add_argument("--accumulation", type=int, default=1)
    asked = parser.parse_args()
    found = read()
    run_of = wanted(asked.engines.split(","), asked.tunings.split(","), asked.accumulation)
    results = run(asked.stack, run_of, Path(tempfile.mkdtemp(prefix="mixed-long-")))
    for cell in run_of:
        what = (asked.stack, cell.engine, cell.tuning, str(cell.accumulation))
        found[what] = words(results[cell.id])
        print(*what, *found[what], flush=True)
    save(found)


if __name__ == "__main__":
    main()
