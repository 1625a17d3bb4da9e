"""Flags that a newer transformers does not know."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig

_RENAMED = {
    "evaluation_strategy": ("eval_strategy", "4.51.0"),
    "warmup_ratio": ("warmup_steps", "5.15.0"),
}


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    for old, (new, since) in _RENAMED.items():
        given = launch.options.get(old)
        if old == "warmup_ratio" and launch.swift:
            continue  # ms-swift has kept it
        if given and inside(around, "transformers", f">={since}.dev0"):
            title = around.say("--{old} is gone from transformers {since} on.", old=old, since=since)
            fix = written(given, new, given.value)
            by = ("renamed-training-flags",) if launch.minicpmv else ()
            yield known(around, "L10", "D", title, quote(given), fix, by)
