"""ZeRO-1 or ZeRO-2 with overlap_comm, which uses memory again before its reduction is over."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, known, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.get("zero_optimization.overlap_comm")
    if launch.stage not in (1, 2) or given is None or not given.on:
        return
    title = around.say(
        "On GPUs gradients can become wrong or NaN: memory is used again before it is reduced."
    )
    yield known(around, "L23", "F54", title, quote(given), written(given, "overlap_comm", "false"))
