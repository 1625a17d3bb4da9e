"""GRPO and its kin generate while checkpointing is on."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    named = " ".join(
        [*launch.programs, *(said.value for name, said in launch.options.items() if name == "rlhf_type")]
    ).lower()
    given = launch.checkpointing
    local = not ((fast := launch.get("use_vllm")) and fast.on)
    if "grpo" in named and given and given.on and local and _generates(launch, around):
        title = around.say("generate() with checkpointing on loses its KV cache half way.")
        yield known(around, "L13", "F30", title, quote(given), written(given, "use_vllm", "true"))


def _generates(launch: LaunchConfig, around: Around) -> bool:
    """Whether it generates with checkpointing on, and layers drop their caches then, as they do until 5.24.

    TRL switches it off for that time from 0.22 on.
    """
    if not inside(around, "transformers", "<5.24.0.dev0"):
        return False
    if launch.generates or launch.swift or around.installed.get("trl") is None:
        return True
    trl = launch.launcher == "trl" or launch.generates is False
    return not trl or inside(around, "trl", "<0.22.0.dev0")
