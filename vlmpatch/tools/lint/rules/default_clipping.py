"""DeepSpeed clips at 1.0 from 0.19.3 on where its configuration does not say otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, link, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    stated = launch.get("zero_optimization.stage")
    given = launch.get("gradient_clipping", "deepspeed_config.gradient_clipping")
    known = around.installed.get("deepspeed") is not None
    if stated and given is None and known and inside(around, "deepspeed", ">=0.19.3.dev0"):
        title = around.say(
            "The configuration says nothing of clipping: this DeepSpeed clips at a norm of 1.0."
        )
        yield Finding(
            "L24", "note", title, quote(stated), written(stated, "gradient_clipping", "0"), link("F55")
        )
