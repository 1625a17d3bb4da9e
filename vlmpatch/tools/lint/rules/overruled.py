"""A script that chooses for ``model.visual``, and then for ``model.model``, which holds it since 4.52."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    if not inside(around, "transformers", ">=4.52.0.dev0"):
        return
    for each in launch.overruled:
        title = around.say(
            "{part} holds the vision tower, and freezes or trains it whatever was chosen for it.",
            part=each.part,
        )
        yield known(around, "L29", "F127", title, printable(each.where), f"{each.part}.language_model")
