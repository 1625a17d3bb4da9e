"""FSDP is told to wrap a class that the model's code does not have."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint import fsdp
from vlmpatch.tools.lint.context import Around, known, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    asked = fsdp.wrapped(launch) if launch.fsdp and around.model else None
    there = fsdp.classes(around.model) if asked and around.model else None
    if asked is None or not there:
        return
    given, names = asked
    absent = [name for name in names if name not in there]
    if absent:
        shown = printable(", ".join(absent))
        title = around.say("The model has no class {names}: FSDP ends before the first step.", names=shown)
        layers = ",".join(fsdp.layers(there)) or "LAYER"
        yield known(around, "L20", "F40", title, quote(given), written(given, given.name, layers), by=())
