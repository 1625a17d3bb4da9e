"""Checkpointing switched off, as people do against these failures, at the cost of memory."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, nonreentrant, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.checkpointing
    if given and given.off and not launch.fsdp and (around.model is None or around.model.vision):
        title = around.say(
            "Checkpointing is off, which costs memory; against these failures it is not needed."
        )
        on = written(given, given.name, "true")
        fix = f"{on} {nonreentrant(given)}" if on.startswith("--") else f"{on}\n{nonreentrant(given)}"
        yield Finding("L08", "note", title, quote(given), fix)
