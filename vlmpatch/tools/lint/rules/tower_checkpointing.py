"""The vision tower's checkpointing switched off where even a frozen tower keeps its activations."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, fixed_or, inside, link, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.get("vit_gradient_checkpointing")
    if given and given.off and launch.checkpoints and inside(around, "transformers", ">=5.0.0.dev0"):
        title = around.say("The vision tower is not checkpointed, and keeps its activations even if frozen.")
        fix = fixed_or(around, "F90", written(given, given.name, "true"))
        yield Finding("L18", "note", title, quote(given), fix, link("F90"))
