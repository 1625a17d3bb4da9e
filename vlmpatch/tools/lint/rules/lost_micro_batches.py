"""ZeRO-2 with accumulation: the last of a window alone counts, or, offloaded, the first and the last."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.get("gradient_accumulation_steps")
    offloaded = launch.offloaded
    right, range_ = (2, ">=0.15.4,<0.19.0.dev0") if offloaded else (1, ">=0.17.6.dev0,<0.18.3.dev0")
    if launch.stage == 2 and given and launch.accumulation > right and inside(around, "deepspeed", range_):
        title = around.say(
            "Only the first and the last micro-batch of each step count, without an error."
            if offloaded
            else "Only the last micro-batch of each step counts, without an error."
        )
        by = ("zero2-offload-lost-micro-batches" if offloaded else "zero2-lost-micro-batches",)
        yield known(around, "L11", "F18", title, quote(given), "pip install 'deepspeed>=0.19.8'", by)
