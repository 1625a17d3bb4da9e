"""GRPO and its kin generate while checkpointing is on."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, ended, link, quote, severity, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    named = " ".join(
        [*launch.programs, *(said.value for name, said in launch.options.items() if name == "rlhf_type")]
    ).lower()
    given = launch.checkpointing
    local = not ((fast := launch.get("use_vllm")) and fast.on)
    if "grpo" in named and given and given.on and local:
        title = around.say("generate() with checkpointing on loses its KV cache half way.")
        fix = ended(around, "F30", written(given, "use_vllm", "true"))
        yield Finding("L13", severity(around, "F30"), title, quote(given), fix, link("F30"))
