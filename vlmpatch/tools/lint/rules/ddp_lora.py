"""LoRA under DDP with the reentrant checkpointing of transformers before 5."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, known, nonreentrant, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.reentrance import by_default, called_default


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    lora = launch.lora
    if lora is None or not launch.ddp or launch.llamafactory:
        return  # LLaMA-Factory tells DDP that every parameter is used, so that it does not count
    if by_default(launch, around):
        title = around.say(
            "LoRA under DDP with reentrant checkpointing, {default}, ends in an error.",
            default=called_default(launch, around),
        )
        said = "pip install 'ms-swift>=3.5.4'" if launch.swift else nonreentrant(launch.checkpointing)
        by = ("swift-checkpoint-override",) if launch.swift else None
        yield known(around, "L15", "F3", title, quote(lora), said, by)
