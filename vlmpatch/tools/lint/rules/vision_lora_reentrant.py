"""LoRA in the vision tower with reentrant checkpointing that nobody asked for, under any engine."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known, nonreentrant, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.reentrance import by_default, called_default


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    lora = launch.lora
    if lora is None or not launch.vision_lora or not by_default(launch, around):
        return
    if launch.ddp and not launch.llamafactory:
        return  # it ends in an error before that (L15)
    title = around.say(
        "Reentrant checkpointing, {default}, leaves LoRA in a vision tower untrained.",
        default=called_default(launch, around),
    )
    old = launch.stage == 3 and inside(around, "deepspeed", "<0.19.3.dev0")
    fix = nonreentrant(launch.checkpointing) + ("; pip install 'deepspeed>=0.19.3'" if old else "")
    yield known(around, "L16", "F5", title, quote(lora), fix)
