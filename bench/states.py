"""The bytes of weights, gradients and AdamW's states a rank holds: what doctor computes, and what is there.

    python -m bench.states [STACK]

Two ranks over gloo, a Qwen2-VL of 136,704 parameters, two micro-batches a window: the most that living
tensors take up after a backward, beside what ``doctor --model`` computes from bytes a parameter. Writes the
table of ``docs/doctor.md`` and its Chinese twin, and ends with 1 where the two are more than ``APART`` from
each other.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.lab import envs, launch, pages
from vlmpatch.tools.doctor.engines import ENGINES, Engine, states

STACK, WORLD = "tf457-ds0182", 2
APART = 0.04  # a bucket, and what is padded
TUNINGS = {"full": {"en": "full", "zh": "全参"}, "lora": {"en": "LoRA", "zh": "LoRA"}}
BEGIN = "<!-- written by bench.states -->"
HEADS = {
    "en": ("engine", "tuning", "computed, bytes a rank", "measured"),
    "zh": ("引擎", "微调方式", "计算值，每个 rank 的字节数", "测量值"),
}


class Row(NamedTuple):
    """An engine and a tuning: bytes a rank."""

    engine: str
    tuning: str
    computed: int
    measured: int

    @property
    def apart(self) -> float:
        """How far the two are from each other, as a part of what was computed."""
        return abs(self.measured - self.computed) / self.computed


def computed(engine: Engine, found: dict[str, Any]) -> int:
    """As doctor does it; adapters, which it leaves out, are trained in full."""
    frozen = found["parameters"] if found["tuning"] == "lora" else 0
    parts = ((frozen, states(engine, "lora")), (found["trained"], states(engine, "full")))
    return round(sum(count * (whole + divided / WORLD) for count, (whole, divided) in parts))


def measured(name: str) -> Iterator[Row]:
    """Every engine and tuning, on one stack."""
    stack = envs.read_stacks()[name]
    envs.make(stack)
    done = launch.run(stack, ["python", "-m", "bench.states_ranks", *TUNINGS], limit=600)
    found = [json.loads(line) for line in done.output.splitlines() if line.startswith('{"stage"')]
    if len(found) != len(TUNINGS) * len(ENGINES):
        raise RuntimeError(str(done))
    for each in found:
        engine = ENGINES[each["stage"]]
        yield Row(engine.name, each["tuning"], computed(engine, each), each["bytes"])


def main() -> int:
    """Measure, and write the table in both languages."""
    parser = argparse.ArgumentParser(prog="python -m bench.states")
    parser.add_argument("stack", nargs="?", default=STACK)
    rows = list(measured(parser.parse_args().stack))
    for language, heads in HEADS.items():
        body = [
            (row.engine, TUNINGS[row.tuning][language], f"{row.computed:,}", f"{row.measured:,}")
            for row in rows
        ]
        page = pages.DOCS[language] / "doctor.md"
        page.write_text(pages.filled(page.read_text("utf-8"), BEGIN, pages.table(heads, body)), "utf-8")
    print(*(f"{row} {row.apart:.1%}" for row in rows), sep="\n")
    return int(any(row.apart > APART for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
