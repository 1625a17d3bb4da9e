"""The ``grad_norm`` that HF Trainer prints, by engine and accumulation: what can be compared with what.

    python -m bench.grad_norm [STACK]

Two ranks over gloo, a tiny Qwen2-VL with LoRA (``tests/programs/train_hf.py``), checkpointing off in every
run, so that nothing but the engine differs; DeepSpeed is told to clip (``gradient_clipping: auto``). Writes a
table of ``docs/grad-norm.md`` and its Chinese twin.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.lab import envs, launch, pages
from vlmpatch_lab.ports import free_port

STACK = "tf457-ds0182"
SCRIPT = launch.ROOT / "tests" / "programs" / "train_hf.py"
ENGINES = {"ddp": "DDP", "zero0": "ZeRO-0", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
ACCUMULATIONS = (1, 4)
BEGIN = "<!-- written by bench.grad_norm -->"
HEADS = {
    "en": ("engine", "micro-batches", "without vlmpatch", "with vlmpatch"),
    "zh": ("引擎", "micro batch 数", "不用 vlmpatch", "使用 vlmpatch"),
}


def first(stack: envs.Stack, model: Path, engine: str, accumulation: int, patched: bool) -> str:
    """The ``grad_norm`` of the first step, as it is printed; a dash where none is."""
    prefix = ["python", "-m", "vlmpatch", "run"] if patched else []
    command = [*prefix, "torchrun", "--nproc_per_node", "2", "--master_port", str(free_port()), str(SCRIPT)]
    command += ["--engine", engine, "--accumulation", str(accumulation), "--no-checkpointing"]
    command += ["--clipping", "--model"]
    gloo, waiting = engine != "ddp", engine == "zero3"
    done = launch.run(stack, [*command, model], limit=600, gloo=gloo, waiting=waiting)
    found = re.search(r"'grad_norm': '?([\d.e-]+)", done.output)
    if done.rc != 0:
        raise RuntimeError(str(done))
    return f"{float(found[1]):.4g}" if found else "–"


def rows(stack: envs.Stack) -> list[tuple[str, ...]]:
    """A line an engine and a number of micro-batches."""
    model, lines = launch.checkpoint(stack, "qwen2_vl"), list[tuple[str, ...]]()
    for accumulation in ACCUMULATIONS:
        for engine, name in ENGINES.items():
            both = (first(stack, model, engine, accumulation, patched) for patched in (False, True))
            lines.append((name, str(accumulation), *both))
            print(*lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, and write the table in both languages."""
    stack = envs.read_stacks()[sys.argv[1] if len(sys.argv) > 1 else STACK]
    envs.make(stack)
    measured = rows(stack)
    for language, heads in HEADS.items():
        page = pages.DOCS[language] / "grad-norm.md"
        page.write_text(pages.filled(page.read_text("utf-8"), BEGIN, pages.table(heads, measured)), "utf-8")


if __name__ == "__main__":
    main()
