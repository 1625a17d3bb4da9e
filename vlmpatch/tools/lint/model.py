"""A model's ``config.json``: what it is, as far as that matters for checkpointing. Its code is never run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vlmpatch.support import files

_VISION = ("vision_config", "visual", "vision_tower", "mm_vision_tower", "vit_config", "vision_cfg")
_AUDIO = ("audio_config", "audio_tower")
_LANGUAGE = ("text_config", "llm_config", "language_config", "thinker_config")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_intermediate_size")
_LAYERS = ("num_hidden_layers", "depth", "encoder_layers", "num_layers", "n_layer")
_WIDTH = ("embed_dim", "hidden_size", "d_model", "width")
_VIDEO = ("video_token_id", "video_token_index", "video_token")
_INDEX = "model.safetensors.index.json"
_MIXTURE = re.compile(  # names of models whose blocks call those experts alone that were reached
    r"Qwen3-(?:VL|Omni)-\d+B-A\d+B|GLM-4\.[56]V(?!.*Flash)|DeepSeek-V[23]|deepseek-vl2", re.IGNORECASE
)


class Tower(NamedTuple):
    """One of a model's stacks of layers; ``layers`` and ``width`` where the configuration says them."""

    name: str
    kind: str
    layers: int | None
    width: int | None


class Model(NamedTuple):
    """What a model's ``config.json`` says that matters here.

    Attributes:
        folder: it lies in.
        kind: its ``model_type``.
        vision: whether it has a vision tower.
        experts: whether it is a mixture of experts.
        remote: whether it brings code of its own.
        architecture: the class it is saved as.
        towers: its stacks of layers, the language model's first.
        takes: what it is shown beside text.
        code: the files of its own code that the configuration names.
        parameters: how many, where an index of its weights says so.
    """

    folder: str
    kind: str
    vision: bool
    experts: bool
    remote: bool
    architecture: str = ""
    towers: tuple[Tower, ...] = ()
    takes: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    parameters: int | None = None


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
    folder = os.path.dirname(file) or "."
    parts = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    architectures = config.get("architectures")
    named = str(architectures[0])[:80] if isinstance(architectures, list) and architectures else ""
    kind = str(config.get("model_type") or named or "unknown")
    vision = any(part.get(key) for part in parts for key in _VISION) or "vl" in kind.lower()
    return Model(
        folder,
        kind[:60],
        vision,
        any(_several(part.get(key)) for part in parts for key in _EXPERTS),
        "auto_map" in config,
        named,
        tuple(_towers(config)),
        tuple(_takes(parts, vision)),
        tuple(_code(config.get("auto_map"))),
        _parameters(folder, config),
    )


def mixture(name: str) -> bool:
    """Whether a model called ``name`` is a mixture of experts of the kind that ranks disagree about."""
    return _MIXTURE.search(name) is not None


def _several(value: Any) -> bool:
    return isinstance(value, int) and value > 1


def _towers(config: Mapping[str, Any]) -> Iterator[Tower]:
    parts = {key: value for key, value in config.items() if isinstance(value, Mapping)}
    inner = parts.get("thinker_config", {})
    parts |= {key: value for key, value in inner.items() if isinstance(value, Mapping)}
    named = (parts[key] for key in _LANGUAGE if key in parts)
    yield _tower("language", next((part for part in named if _number(part, _LAYERS)), config))
    for name, keys in (("vision", _VISION), ("audio", _AUDIO)):
        for key in keys:
            if key in parts:
                yield _tower(name, parts[key])
            elif isinstance(config.get(key), str):
                yield Tower(name, config[key][:60], None, None)
            else:
                continue
            break


def _tower(name: str, part: Mapping[str, Any]) -> Tower:
    kind = str(part.get("model_type") or "")[:60]
    return Tower(name, kind, _number(part, _LAYERS), _number(part, _WIDTH))


def _number(part: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    found = (part[key] for key in keys if isinstance(part.get(key), int))
    return next((value for value in found if not isinstance(value, bool)), None)


def _takes(parts: list[Mapping[str, Any]], vision: bool) -> Iterator[str]:
    if vision:
        yield "images"
    if any(part.get(key) is not None for part in parts for key in _VIDEO):
        yield "videos"
    if any(part.get(key) for part in parts for key in _AUDIO):
        yield "audio"


def _code(auto_map: Any) -> Iterator[str]:
    values = auto_map.values() if isinstance(auto_map, Mapping) else ()
    names = {str(value).rpartition("--")[2].rpartition(".")[0] for value in values if isinstance(value, str)}
    yield from sorted(f"{name}.py" for name in names if re.fullmatch(r"[\w.]{1,80}", name))


def _parameters(folder: str, config: Mapping[str, Any]) -> int | None:
    """From the size of all weights; of their type the configuration tells how large one is."""
    try:
        index = json.loads(files.read(os.path.join(folder, _INDEX)))
        size = index["metadata"]["total_size"]
        each = 4 if "32" in str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")[-4:] else 2
        return int(size) // each
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        return None
