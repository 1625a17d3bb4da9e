"""A ZeRO step in which every gradient arrives, with vlmpatch and without: time, memory, Python calls.

    python -m bench.zero_step [STACK ...]

Two ranks over gloo, a Qwen2-VL of 5 million parameters, an image in every batch. Runs with and without take
turns, since the machine is not the same from minute to minute; counts are exact. What is measured goes to
``data/zero_step.csv``, from which ``make generate`` writes a table of ``docs/mixed-batches.md`` and its
Chinese twin.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.lab import envs, launch, pages, table

STACKS = ("tf457-ds0182", "tf523-ds0198")
TURNS = 2  # of each
STORE = pages.ROOT / "data" / "zero_step.csv"
BEGIN = "<!-- written by bench.zero_step -->"
WHAT = ("deepspeed", "setting")
COLUMNS = (
    *WHAT,
    *("bare_milliseconds", "milliseconds", "ratio", "bare_mib", "mib", "bare_calls", "calls"),
)
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ZeRO-1": ("zero1", {}),
    "ZeRO-2": ("zero2", {}),
    "ZeRO-2, overlap_comm": ("zero2", {"overlap_comm": True}),
    "ZeRO-2, offload_optimizer": ("zero2", {"offload_optimizer": {"device": "cpu"}}),
    "ZeRO-3": ("zero3", {}),
    "ZeRO-3, offload_optimizer": ("zero3", {"offload_optimizer": {"device": "cpu"}}),
}
HEADS = {
    "en": ("", "time", "memory", "Python calls"),
    "zh": ("", "时间", "内存", "Python 调用次数"),
}
Step = dict[str, float]


def measure(stack: str, model: Path, patched: bool) -> dict[str, Step]:
    """One process of the stack: a step of each setting."""
    asked = json.dumps(SETTINGS)
    command: list[str | Path] = ["python", "-m", "bench.zero_step_ranks", model, asked]
    finished = launch.run(
        envs.read_stacks()[stack], [*command, *(["--patched"] if patched else [])], limit=600
    )
    found = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"setting": ')]
    if len(found) != len(SETTINGS):
        raise RuntimeError(str(finished))
    return {step.pop("setting"): step for step in found}


def rows(stack: str, model: Path) -> list[dict[str, str]]:
    """A line of the record for each setting."""
    turns = [(measure(stack, model, False), measure(stack, model, True)) for _ in range(TURNS)]
    release = next(p.split("==")[1] for p in envs.read_stacks()[stack].packages if "deepspeed==" in p)
    lines = []
    for setting in SETTINGS:
        pairs = [(bare[setting], patched[setting]) for bare, patched in turns]
        seconds = [min(step["seconds"] for step in column) for column in zip(*pairs, strict=True)]
        memory = [min(step["bytes"] for step in column) for column in zip(*pairs, strict=True)]
        numbers = (
            *(f"{each * 1e3:.0f}" for each in seconds),
            f"{seconds[1] / seconds[0]:.2f}",
            *(f"{max(size, 0) / 2**20:.0f}" for size in memory),
            *(f"{step['calls']:.0f}" for step in pairs[0]),
        )
        lines.append(dict(zip(COLUMNS, (release, setting, *numbers), strict=True)))
        print(*lines[-1].values(), flush=True)
    return lines


def read(path: Path = STORE) -> list[dict[str, str]]:
    """What was measured.

    Raises:
        table.Broken: the file is not whole.
    """
    return [line for _, line in table.read(path, COLUMNS, "python -m bench.zero_step")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.zero_step")
    parser.add_argument("stacks", nargs="*", default=STACKS)
    measured: list[dict[str, str]] = []
    for stack in parser.parse_args().stacks:
        envs.make(envs.read_stacks()[stack])
        with tempfile.TemporaryDirectory() as folder:
            measured += rows(stack, Path(folder) / "model")
    table.write_over(STORE, COLUMNS, read(), measured, "deepspeed")


def filled(language: str, text: str) -> str:
    """The page ``text`` with the table as the record has it."""
    body = [
        (
            f"{line['deepspeed']} {line['setting']}",
            f"{line['bare_milliseconds']} → {line['milliseconds']} ms ({line['ratio']})",
            f"{line['bare_mib']} → {line['mib']} MiB",
            f"{line['bare_calls']} → {line['calls']}",
        )
        for line in read()
    ]
    return pages.filled(text, BEGIN, pages.table(HEADS[language], body))


if __name__ == "__main__":
    main()
