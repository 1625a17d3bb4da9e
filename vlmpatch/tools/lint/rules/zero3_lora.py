"""ZeRO-3 with frozen parameters and non-reentrant checkpointing before DeepSpeed 0.19.3."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    frozen, checkpointing = launch.frozen_in_graph, launch.checkpointing
    if launch.stage != 3 or frozen is None or launch.reentrant or (checkpointing and checkpointing.off):
        return
    if not _nonreentrant(launch, around):
        return
    if not inside(around, "deepspeed", "<0.19.3.dev0") or not inside(around, "torch", ">=2.5.0.dev0"):
        return
    title = around.say("Frozen parameters with checkpointing under ZeRO-3 end in a CheckpointError.")
    by = ("zero3-recompute-release",)
    yield known(around, "L02", "F4", title, quote(frozen), "pip install 'deepspeed>=0.19.3'", by)


def _nonreentrant(launch: LaunchConfig, around: Around) -> bool:
    """Whether this launch would checkpoint without reentrance, as far as it can be told."""
    if launch.swift:
        return False  # under DeepSpeed it is reentrant there, whatever is said
    if launch.nonreentrant or launch.minicpmv:
        return True
    old = around.installed.get("transformers") is not None and inside(around, "transformers", "<5.0.0.dev0")
    return not old and not launch.llamafactory and "grad_checkpoint" not in launch.options
