"""``use_reentrant=True``, written out."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, link, nonreentrant, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    if (given := launch.reentrant) is None:
        return
    failure = {0: "F3", 1: "F1", 2: "F1", 3: "F8"}[launch.stage]
    title = around.say("Reentrant checkpointing is asked for, which fails or trains wrongly here.")
    yield Finding("L01", "warning", title, quote(given), nonreentrant(given), link(failure))
