"""What ZeRO-3 gathers in a step, on each release: writes ``docs/zero3-gathers.md`` and its Chinese twin.

    python -m bench.zero3_gather [STACK ...]

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
from tests.lab import envs, launch, pages

STACKS = ("tf445-ds0154", "tf447-ds0169", "tf457-ds0182", "tf523-ds0198")
BEGIN = "<!-- measured -->"
HEAD = {
    "en": "| DeepSpeed | | calls | elements / parameters | most at once | left | step |",
    "zh": "| DeepSpeed | | 次数 | 元素数 / 参数量 | 同时驻留 | 残留 | 每步时间 |",
}
WORDS = {"lora": "LoRA", "full": "full"}


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


def rows(release: str, results: dict[str, dict[str, Any]]) -> list[str]:
    return [line(release, f"{WORDS[t]}, {mode}", results[run.id]) for (t, mode), run in runs().items()]


def line(release: str, what: str, result: dict[str, Any]) -> str:
    if result["error"]:
        return f"| {release} | {what} | {result['error'].split(':')[0]} (F4) | | | | |"
    step, whole = result["steps"][-1], result["parameters"]
    left = sum(len(step["left"]) for step in result["steps"][-1:])
    numbers = f"{step['calls']} | {step['elements'] / whole:.2f} | {step['peak'] / whole:.3f} | {left}"
    wrong = "" if result["difference"] <= 1e-5 else f" (gradients off by {result['difference']:.0%})"
    return f"| {release} | {what}{wrong} | {numbers} | {step['seconds'] * 1000:.0f} ms |"


def main() -> None:
    measured: list[str] = []
    for name in sys.argv[1:] or STACKS:
        release = next(p.split("==")[1] for p in envs.read_stacks()[name].packages if "deepspeed==" in p)
        measured += rows(release, measure(name))
        print("\n".join(measured[-len(runs()) :]), flush=True)
    for language, head in HEAD.items():
        path = pages.DOCS[language] / "zero3-gathers.md"
        table = "\n".join([head, "|---" * 7 + "|", *measured])
        path.write_text(pages.filled(path.read_text("utf-8"), BEGIN, table), "utf-8")


if __name__ == "__main__":
    main()
