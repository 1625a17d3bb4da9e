"""Whether a launch that does not say which checkpointing it wants gets the reentrant one."""

from __future__ import annotations

from vlmpatch.tools.lint.context import Around, inside
from vlmpatch.tools.lint.launch_config import LaunchConfig


def by_default(launch: LaunchConfig, around: Around) -> bool:
    """Whether checkpointing is reentrant here because nobody says anything; known versions alone count."""
    if launch.reentrant or launch.nonreentrant or launch.minicpmv or not launch.checkpoints:
        return False
    if launch.swift:
        return launch.stage > 0 or _is(around, "ms-swift", ">=3.0.0.dev0,<3.5.4.dev0")
    if launch.llamafactory or "grad_checkpoint" in launch.options:
        return True  # LLaMA-Factory fills it in; InternVL's own code calls checkpoint() without it
    return _is(around, "transformers", "<5.0.0.dev0")


def _is(around: Around, name: str, specifier: str) -> bool:
    return around.installed.get(name) is not None and inside(around, name, specifier)
