"""LLaMA-Factory fills in ``use_reentrant_gc: true``, which fails where the vision tower is trained."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, known
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    frozen, off = launch.get("freeze_vision_tower"), launch.get("disable_gradient_checkpointing")
    trains = launch.llamafactory and frozen is not None and frozen.off and not (off and off.on)
    if trains and launch.get("use_reentrant_gc") is None and launch.stage != 3:
        failure = "F1" if launch.stage else "F3"
        title = around.say("LLaMA-Factory fills in use_reentrant_gc: true where nothing is said.")
        by = ("llamafactory-forced-reentrant",)
        yield known(around, "L14", failure, title, "", "use_reentrant_gc: false", by)
