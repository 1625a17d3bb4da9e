"""ZeRO-3 that does not gather what it saves."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, link, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.get("zero_optimization.stage3_gather_16bit_weights_on_model_save")
    stated = launch.get("zero_optimization.stage")
    if launch.stage == 3 and stated and (given is None or given.off) and launch.lora is None:
        title = around.say("Nothing gathers the weights when the model is saved.")
        fix = '"stage3_gather_16bit_weights_on_model_save": true'
        yield Finding("L06", "warning", title, quote(stated), fix, link("F25"))
