"""What vlmpatch costs a step of 5,000 parameters in 100 checkpointed blocks, and whether anything grows.

    python -m bench.at_size [SETTING=STEPS ...]

Counts are exact; milliseconds are of the process, a median. What grows is counted over all steps past the
first tenth, in blocks of Python's memory, and in bytes over the last tenth, which ``tracemalloc`` looks at.
What is measured goes to ``data/at_size.csv``, from which ``make generate`` writes a table of
docs/evidence.md in both languages. The steps that are asked by default take hours.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tests.lab import envs, launch, pages, table

STACK = "tf457-ds0182"
STORE = pages.ROOT / "data" / "at_size.csv"
BEGIN = "<!-- written by bench.at_size -->"
STEPS = {"checkpointed": 10_000, "ddp": 10_000, "zero2": 1_000, "zero3": 200}
FIGURES = {"milliseconds": ".1f", "calls": ".0f", "blocks": ".0f", "bytes": ".0f"}
COLUMNS = ("setting", "steps", *(f"{kind}{name}" for name in FIGURES for kind in ("bare_", "")))
NAMES = {
    "checkpointed": {"en": "one process", "zh": "单进程"},
    "ddp": {"en": "DDP", "zh": "DDP"},
    "zero2": {"en": "ZeRO-2", "zh": "ZeRO-2"},
    "zero3": {"en": "ZeRO-3", "zh": "ZeRO-3"},
}
HEADS = {
    "en": ("a step of 5,000 parameters", "time", "Python calls", "blocks of memory that steps leave"),
    "zh": ("5,000 个参数的一步", "时间", "Python 调用次数", "各步之后留下的内存块"),
}
LEFT = {"en": "{bare_blocks} → {blocks} in {steps} steps", "zh": "{steps} 步：{bare_blocks} → {blocks}"}


def measure(setting: str, steps: int, *more: str) -> dict[str, Any]:
    """One process of the stack."""
    command: list[str | Path] = ["python", "-m", "bench.at_size_ranks", json.dumps({setting: steps}), *more]
    counted = {launch.BACKWARD: ""}  # in the thread that asks, where calls are counted
    finished = launch.run(envs.read_stacks()[STACK], command, limit=7200, env=counted)
    line = next((line for line in finished.output.splitlines() if line.startswith('{"setting": ')), None)
    if line is None:
        raise RuntimeError(str(finished))
    found: dict[str, Any] = json.loads(line)
    return found


def row(bare: dict[str, Any], patched: dict[str, Any]) -> dict[str, str]:
    """A line of the record, from what both processes printed."""
    kinds = {"bare_": bare, "": patched}
    found = {
        f"{kind}{name}": f"{each[name]:{form}}"
        for name, form in FIGURES.items()
        for kind, each in kinds.items()
    }
    return {"setting": bare["setting"], "steps": str(bare["steps"]), **found}


def read(path: Path = STORE) -> list[dict[str, str]]:
    """What was measured.

    Raises:
        table.Broken: the file is not whole.
    """
    return [line for _, line in table.read(path, COLUMNS, "python -m bench.at_size")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.at_size")
    parser.add_argument("settings", nargs="*", default=[f"{name}={steps}" for name, steps in STEPS.items()])
    envs.make(envs.read_stacks()[STACK])
    for asked in parser.parse_args().settings:
        setting, _, steps = asked.partition("=")
        found = row(*(measure(setting, int(steps), *more) for more in ([], ["--patched"])))
        print(*found.values(), flush=True)
        table.write_over(STORE, COLUMNS, read(), [found], "setting")


def filled(language: str, text: str) -> str:
    """The page ``text`` with the table as the record has it."""
    body = [
        (
            NAMES[line["setting"]][language],
            f"{line['bare_milliseconds']} → {line['milliseconds']} ms",
            f"{int(line['bare_calls']):,} → {int(line['calls']):,}",
            LEFT[language].format(**{**line, "steps": f"{int(line['steps']):,}"}),
        )
        for line in read()
    ]
    return pages.filled(text, BEGIN, pages.table(HEADS[language], body))


if __name__ == "__main__":
    main()
