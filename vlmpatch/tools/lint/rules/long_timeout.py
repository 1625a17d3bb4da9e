"""A time-out of more than two hours, which ends no hang and only shows it later."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, link, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.get("ddp_timeout", "deepspeed_timeout")
    if given and (given.number or 0) > 7200:
        title = around.say("A long time-out does not end a hang, it only shows it later.")
        yield Finding("L09", "note", title, quote(given), written(given, given.name, "1800"), link("F11"))
