"""ZeRO-1 or ZeRO-2 with overlap_comm, which uses memory again before its reduction is over."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.get("zero_optimization.overlap_comm")
    if launch.stage not in (1, 2) or given is None or not given.on:
        return
    # There it is the buckets themselves, which no patch waits for.
    buckets = any(
        inside(around, "deepspeed", range_) for range_ in ("<0.14.3.dev0", ">=0.17.2.dev0,<0.17.5.dev0")
    )
    version = around.installed.get("deepspeed")
    by = () if buckets and version else ("zero-overlapped-reduction",)
    title = around.say(
        "On GPUs gradients can become wrong or NaN: memory is used again before it is reduced."
    )
    yield known(around, "L23", "F54", title, quote(given), written(given, "overlap_comm", "false"), by)
