"""``static_graph`` with gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, link, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.get("ddp_static_graph", "static_graph", "ddp_config.static_graph")
    if given and given.on and launch.accumulation > 1:
        title = around.say("static_graph with gradient accumulation ends in an internal assertion of torch.")
        fix = written(given, given.name, "false")
        yield Finding("L04", "warning", title, quote(given), fix, link("F123"))
