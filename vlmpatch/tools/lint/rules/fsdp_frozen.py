"""FSDP1 without ``use_orig_params``, and a part of the model is frozen."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint import fsdp
from vlmpatch.tools.lint.context import Around, known, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = fsdp.said(launch, "use_orig_params") if launch.fsdp else None
    if given is None or not given.off or fsdp.version(launch, around) != 1 or launch.lora:
        return  # for an adapter transformers wraps each trained leaf by itself
    if launch.vision_frozen or launch.frozen_in_graph:
        title = around.say("FSDP cannot flatten frozen and trained parameters together.")
        yield known(around, "L21", "F38", title, quote(given), written(given, given.name, "true"))
