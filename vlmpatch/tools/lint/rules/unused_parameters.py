"""DDP looks for unused parameters every step, which a patch has made needless."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, link, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.get("ddp_find_unused_parameters")
    if given and given.on and launch.stage == 0 and "F3" in around.ending:
        title = around.say("Looking for unused parameters costs time every step.")
        fix = around.say("leave it out, unless a part of the model is never used")
        yield Finding("L07", "note", title, quote(given), fix, link("F19"))
