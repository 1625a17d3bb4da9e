"""DeepSpeed's sequence parallelism under ZeRO-1 or ZeRO-2: gradients too large by the size of the group."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, known, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig

_SIZES = (
    "parallelism_config_sp_size",
    "parallelism_config.parallelism_config_sp_size",
    "parallelism_config.sp_size",
)


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    if launch.stage not in (1, 2):
        return
    given, written = launch.get(*_SIZES), launch.sliced
    by: tuple[str, ...] | None = None
    if given and (given.number or 0) > 1:
        size, evidence = given.value, quote(given)
    elif written:
        size, evidence = written.size, printable(written.where)
        by = None if written.weighed else ()  # no patch knows a sum for a mean
    else:
        return
    title = around.say("Gradients are too large by the size of the sequence parallel group.")
    fix = f'"stage": 3  # or: loss = loss / {size}, before backward'
    yield known(around, "L25", "F56", title, evidence, fix, by)
