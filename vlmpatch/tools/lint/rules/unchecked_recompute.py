"""``determinism_check="none"``, under which a recomputation that differs trains wrongly and says nothing."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, link, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.model import mixture


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given, asked = launch.unchecked, launch.checkpointing
    if given is None or (asked and asked.off):
        return
    experts = around.model.experts if around.model else launch.model and mixture(launch.model.value)
    severity, title = (
        ("warning", "Experts that are routed differently in the recomputation pass unnoticed.")
        if experts
        else ("note", "A recomputation that differs from its forward passes unnoticed.")
    )
    yield Finding(
        "L27", severity, around.say(title), quote(given), "determinism_check='default'", link("F45")
    )
