"""Whether a launch that does not say which checkpointing it wants gets the reentrant one.

What is not installed here may be another version where the launch runs: it may be one with the bug.
"""

from __future__ import annotations

from vlmpatch.tools.lint.context import Around, inside
from vlmpatch.tools.lint.launch_config import LaunchConfig

_BEFORE_5 = "<5.0.0.dev0"


def by_default(launch: LaunchConfig, around: Around) -> bool:
    """Whether checkpointing is reentrant because nobody says anything."""
    if launch.reentrant or launch.nonreentrant or launch.minicpmv or not launch.checkpoints:
        return False
    if launch.swift:  # most releases in use are newer: one that is not known is taken for such a one
        old = around.installed.get("ms-swift") and inside(around, "ms-swift", ">=3.0.0.dev0,<3.5.4.dev0")
        return launch.stage > 0 or bool(old)
    return _whatever_the_version(launch) or inside(around, "transformers", _BEFORE_5)


def called_default(launch: LaunchConfig, around: Around) -> str:
    """Whose default it is, as a finding says it."""
    sure = launch.swift or _whatever_the_version(launch) or around.installed.get("transformers")
    return around.say("the default here" if sure else "the default before transformers 5")


def _whatever_the_version(launch: LaunchConfig) -> bool:
    """LLaMA-Factory fills it in; InternVL's own code calls checkpoint() without it."""
    return launch.llamafactory or "grad_checkpoint" in launch.options
