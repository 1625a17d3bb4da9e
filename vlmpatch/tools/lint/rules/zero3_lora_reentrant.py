"""ZeRO-3 with LoRA in the vision tower and reentrant checkpointing that nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known, nonreentrant, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.reentrance import by_default


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    lora = launch.lora
    if lora is None or launch.stage != 3 or not launch.vision_lora or not by_default(launch, around):
        return
    failure = "F5" if "F5" not in around.ending else "F8"
    title = around.say(
        "Under ZeRO-3 reentrant checkpointing, the default here, leaves a vision tower with LoRA untrained."
    )
    newer = "; pip install 'deepspeed>=0.19.3'" if inside(around, "deepspeed", "<0.19.3.dev0") else ""
    fix = nonreentrant(launch.checkpointing) + newer
    yield known(around, "L16", failure, title, quote(lora), fix)
