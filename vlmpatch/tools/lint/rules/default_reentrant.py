"""Reentrant checkpointing that nobody asked for, with a trained tower: it fails where a module runs twice."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, fixed_or, link, nonreentrant, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.reentrance import by_default, called_default


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    if launch.fsdp or not launch.distributed or not by_default(launch, around):
        return
    if launch.vision_frozen or launch.vision_lora or (launch.lora and launch.ddp):
        return  # nothing of it runs twice; or it goes wrong before that (L15, L16)
    if launch.llamafactory and launch.stage != 3:
        return  # L14
    failure = {0: "F3", 1: "F1", 2: "F1", 3: "F8"}[launch.stage]
    title = around.say(
        "Reentrant checkpointing, {default}, fails or trains wrongly where a module runs twice before a "
        "backward (images beside videos, two forwards).",
        default=called_default(launch, around),
    )
    given = launch.checkpointing
    fix = fixed_or(around, failure, nonreentrant(given))
    yield Finding("L19", "note", title, quote(given) if given else "", fix, link(failure))
