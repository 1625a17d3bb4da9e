"""A part of a model that the script unfreezes before ``get_peft_model``, which freezes it again."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, known
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    for each in launch.refrozen:
        title = around.say(
            "{part} is unfrozen before get_peft_model, which freezes it again.", part=each.part
        )
        fix = f"LoraConfig(…, modules_to_save=[{each.part.rpartition('.')[2]!r}])"
        yield known(around, "L22", "F60", title, printable(each.where), fix)
