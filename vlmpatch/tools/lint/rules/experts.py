"""A mixture of experts under ZeRO-2 or ZeRO-3."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, known
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    if around.model and around.model.experts and launch.stage >= 2:
        title = around.say("Ranks that send tokens to different experts wait for each other.")
        fix = "deepspeed.utils.set_z3_leaf_modules(model, [TheSparseBlock])"
        yield known(around, "L12", "F27", title, around.model.kind, fix)
