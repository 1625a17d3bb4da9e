"""HF Trainer under a DeepSpeed configuration that names no precision: its inputs go through fp16."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig

_NAMED = ("fp16.enabled", "bf16.enabled", "amp.enabled")


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    stated, asked = launch.get("zero_optimization.stage"), launch.get("fp16")
    if stated is None or launch.get("deepspeed") is None or around.installed.get("transformers") is None:
        return
    if launch.get(*_NAMED) or (asked and asked.on) or not inside(around, "transformers", "<5.0.0.dev0"):
        return
    title = around.say("The configuration names no precision: HF Trainer rounds images and sounds to fp16.")
    fix = '"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}'
    yield known(around, "L28", "F87", title, quote(stated), fix)
