"""FSDP1 with a release that reads weights outside their unit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint import fsdp
from vlmpatch.tools.lint.context import Around, inside, link, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig, Option

_BROKEN = "4.53.0"  # its Trainer trains the model that it had before FSDP wrapped it
_MENDED = "0.5.10"  # of Liger: its loss gathers a head that is a unit of its own
_HEAD = re.compile(r"\b(?:lm_head|embed_out|output_layer)\b")


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    if not launch.fsdp or fsdp.version(launch, around) != 1:
        return
    if around.installed.get("transformers") == _BROKEN:
        title = around.say(
            "Under FSDP the Trainer of this transformers trains a model that was never wrapped."
        )
        evidence = f"transformers {_BROKEN}"
        yield Finding("L26", "warning", title, evidence, "pip install 'transformers!=4.53.0'", link("F39"))
    head = _saved_head(launch)
    if head and inside(around, "liger-kernel", f"<{_MENDED}"):
        title = around.say("Liger's loss reads a head that FSDP has sharded.")
        yield Finding(
            "L26", "warning", title, quote(head), f"pip install 'liger-kernel>={_MENDED}'", link("F39")
        )


def _saved_head(launch: LaunchConfig) -> Option | None:
    """What names the head among the modules trained whole beside LoRA, where Liger's loss reads it."""
    liger = launch.get("use_liger_kernel", "enable_liger_kernel", "use_liger")
    saved = launch.get("modules_to_save", "lora_modules_to_save", "additional_target")
    return saved if liger and liger.on and saved and launch.lora and _HEAD.search(saved.value) else None
