"""``use_reentrant=True``, written out: where it ends a run, where it trains wrongly, and where it may."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, fixed_or, inside, known, link, nonreentrant, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig

_CUTS = ">=4.47.0.dev0,<5.0.0.dev0"  # transformers in which the graph is cut before the first block

_OVERRULED = ("explicit-reentrant-warning",)


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given, asked = launch.reentrant, launch.checkpointing
    if given is None or (asked and asked.off):
        return
    say, evidence, fix = around.say, quote(given), nonreentrant(given)
    searches = launch.get("ddp_find_unused_parameters")
    counts = (launch.lora and not launch.llamafactory) or (searches and searches.on)
    if launch.ddp and counts:
        title = say("Reentrant checkpointing is asked for, and DDP counts here: it ends in an error.")
        yield known(around, "L01", "F3", title, evidence, fix, _OVERRULED)
    elif launch.vision_lora and inside(around, "transformers", _CUTS):
        title = say("Reentrant checkpointing is asked for: LoRA in a vision tower gets no gradient.")
        yield known(around, "L01", "F5", title, evidence, fix, ("reentrant-checkpoint-inputs",))
    else:
        failure = {0: "F3", 1: "F1", 2: "F1", 3: "F8"}[launch.stage]
        title = say(
            "Reentrant checkpointing is asked for: it fails or trains wrongly where a module runs twice "
            "before a backward (images beside videos, two forwards)."
        )
        by = ("zero3-repeated-reduction",) if launch.stage == 3 else _OVERRULED
        yield Finding("L01", "note", title, evidence, fixed_or(around, failure, fix, by), link(failure))
