"""What ZeRO-3 gathers in a step, on each release.

    python -m bench.zero3_gather [STACK ...]

writes ``data/zero3_gather.csv``, from which ``make generate`` writes the table of ``docs/zero3-gathers.md``
and its Chinese twin.

Two ranks over gloo; a Qwen2-VL with four blocks in each tower; nothing prefetched, reused or persistent,
so that every use of a parameter shows. On a GPU see ``bench.zero3_gather_ranks --table``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.zero3_gather_ranks import MODES
from bench.zero3_runs import Run
from tests.lab import envs, launch, pages, table

STACKS = ("tf445-ds0154", "tf447-ds0169", "tf457-ds0182", "tf523-ds0198")
BEGIN = "<!-- measured -->"
STORE = pages.ROOT / "data" / "zero3_gather.csv"
WHAT = ("deepspeed", "tuning", "mode")
COLUMNS = (*WHAT, "error", "gradients_off", "calls", "elements", "peak", "left", "milliseconds")
HEADS = {
    "en": ("DeepSpeed", "", "calls", "elements / parameters", "most at once", "left", "step"),
    "zh": ("DeepSpeed", "", "次数", "元素数 / 参数量", "同时驻留", "残留", "每步时间"),
}
WORDS = {"lora": "LoRA", "full": "full"}
EXACT = 1e-5  # relative, of gradients


def runs() -> dict[tuple[str, str], Run]:
    base = Run(size="tiny", steps=4)
    return {
        (tuning, mode): dataclasses.replace(base, tuning=tuning, checkpointing=how, patched=patched)
        for tuning in WORDS
        for mode, (how, patched) in MODES.items()
    }


def measure(name: str) -> dict[str, dict[str, Any]]:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "runs.json"
        listed.write_text(json.dumps([dataclasses.asdict(run) for run in runs().values()]))
        command: list[str | Path] = ["python", "-m", "bench.zero3_gather_ranks", listed, "--out", folder]
        finished = launch.run(stack, command, limit=1500)
    found = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"id": ')]
    if len(found) != len(runs()):
        raise RuntimeError(str(finished))
    return {result["id"]: result for result in found}


def rows(release: str, results: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """A line of the record for each tuning and mode."""
    return [
        dict(zip(COLUMNS, (release, WORDS[tuning], mode, *words(results[run.id])), strict=True))
        for (tuning, mode), run in runs().items()
    ]


def words(result: dict[str, Any]) -> tuple[str, ...]:
    if result["error"]:
        return (result["error"].split(":")[0], *[""] * 6)
    step, whole = result["steps"][-1], result["parameters"]
    off = "" if result["difference"] <= EXACT else f"{100 * result['difference']:.0f}"
    gathered = (f"{step['elements'] / whole:.2f}", f"{step['peak'] / whole:.3f}", str(len(step["left"])))
    return ("", off, str(step["calls"]), *gathered, f"{step['seconds'] * 1000:.0f}")


def read(path: Path = STORE) -> list[dict[str, str]]:
    """What was measured.

    Raises:
        table.Broken: the file is not whole.
    """
    return [line for _, line in table.read(path, COLUMNS, "python -m bench.zero3_gather")]


def main() -> None:
    measured: list[dict[str, str]] = []
    for name in sys.argv[1:] or STACKS:
        release = next(p.split("==")[1] for p in envs.read_stacks()[name].packages if "deepspeed==" in p)
        measured += rows(release, measure(name))
        for line in measured[-len(runs()) :]:
            print(*line.values(), flush=True)
    table.write_over(STORE, COLUMNS, read(), measured, "deepspeed")


def page(language: str) -> Path:
    """The page with the table."""
    return pages.DOCS[language] / "zero3-gathers.md"


def filled(language: str) -> str:
    """The page as the record has it."""
    made = pages.table(HEADS[language], map(cells, read()))
    return pages.filled(page(language).read_text("utf-8"), BEGIN, made)


def cells(line: dict[str, str]) -> tuple[str, ...]:
    off = f" (gradients off by {line['gradients_off']}%)" if line["gradients_off"] else ""
    what = f"{line['tuning']}, {line['mode']}{off}"
    if line["error"]:
        return (line["deepspeed"], what, f"{line['error']} (F4)", "", "", "", "")
    numbers = (line["calls"], line["elements"], line["peak"], line["left"])
    return (line["deepspeed"], what, *numbers, f"{line['milliseconds']} ms")


if __name__ == "__main__":
    main()
