"""A model's ``config.json``: what it is, as far as that matters for checkpointing. Its code is never run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from vlmpatch.support import files

_VISION = ("vision_config", "visual", "vision_tower", "mm_vision_tower", "vit_config", "vision_cfg")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_intermediate_size")


class Model(NamedTuple):
    """What a model's ``config.json`` says that matters here."""

    folder: str
    kind: str
    vision: bool
    experts: bool
    remote: bool


def read(path: str) -> Model | str:
    """The model at folder or file ``path``, or what is wrong with it in words."""
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        config = json.loads(files.read(file))
    except OSError as error:
        return f"{file}: {error.strerror}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{file}: {error}"
    if not isinstance(config, Mapping):
        return f"{file}: holds no settings"
    parts = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    kind = str(config.get("model_type") or next(iter(config.get("architectures") or []), "unknown"))
    vision = any(part.get(key) for part in parts for key in _VISION) or "vl" in kind.lower()
    experts = any(_several(part.get(key)) for part in parts for key in _EXPERTS)
    return Model(os.path.dirname(file) or ".", kind[:60], vision, experts, "auto_map" in config)


def _several(value: Any) -> bool:
    return isinstance(value, int) and value > 1
