"""What a launch says of FSDP: accelerate's ``fsdp_config``, transformers' of the same name, and flags."""

from __future__ import annotations

import json
import re

from vlmpatch.gate.source import NoSource, locate, of_file
from vlmpatch.tools.lint.context import Around
from vlmpatch.tools.lint.launch_config import LaunchConfig, Option
from vlmpatch.tools.lint.model import Model

_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_LAYER = re.compile(r"(?:DecoderLayer|EncoderLayer|Block)$")
_SUFFIX = re.compile(r"_(?:text|vision|vision_model|text_model|audio|audio_encoder|moe_text)$")


def said(launch: LaunchConfig, name: str) -> Option | None:
    """What is said of ``name``, which is written with and without ``fsdp_``."""
    names = [f"{above}{prefix}{name}" for above in ("fsdp_config.", "") for prefix in ("fsdp_", "")]
    if given := launch.get(*names):
        return given
    inline = launch.get("fsdp_config")
    if inline is None or not inline.value.lstrip().startswith("{"):
        return None
    try:
        values = json.loads(inline.value)
    except (ValueError, RecursionError):
        return None
    found = (values[key] for key in (f"fsdp_{name}", name) if key in values)
    return next((Option(_text(value), inline.where, name) for value in found), None)


def version(launch: LaunchConfig, around: Around) -> int:
    """1 or 2; transformers 5 shards by FSDP2 where nothing is said, accelerate by FSDP1."""
    given = said(launch, "version")
    if given and given.number:
        return given.number
    by_trainer = launch.get("fsdp") is not None
    newer = (around.installed.get("transformers") or "4").partition(".")[0] not in ("3", "4")
    return 2 if by_trainer and newer else 1


def wrapped(launch: LaunchConfig) -> tuple[Option, list[str]] | None:
    """The classes that the launch says to wrap, and where it says so."""
    given = said(launch, "transformer_layer_cls_to_wrap")
    names = re.findall(r"\w+", given.value) if given else []
    return (given, names) if given and names else None


def classes(model: Model) -> list[str] | None:
    """Every class that the code of ``model`` defines; None where a part of it is not there to be read."""
    if model.remote:
        return None
    found: list[str] = []
    kinds = (model.kind, *(tower.kind for tower in model.towers if tower.kind))
    for own in dict.fromkeys(_SUFFIX.sub("", kind) for kind in kinds):
        path = locate(f"transformers.models.{own}.modeling_{own}")
        if path is None:
            return None
        try:
            found += _CLASS.findall(of_file(own, path).source)
        except NoSource:
            return None
    return found


def layers(names: list[str]) -> list[str]:
    """Those of ``names`` that are usually wrapped."""
    return [*filter(_LAYER.search, names)]


def _text(value: object) -> str:
    return json.dumps(value) if not isinstance(value, str) else value
