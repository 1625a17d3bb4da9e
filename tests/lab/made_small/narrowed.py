"""A configuration in its class's own proportions: every width divided by one number, a layer of each kind."""

from __future__ import annotations

import re
from typing import Any

from tests.lab.made_small.sizes import (
    BACKBONE,
    DEPTH,
    GROUPS,
    LAYERS,
    NO_WIDTH,
    PERIOD,
    PLAIN_BACKBONE,
    STAGES,
    UNSAID,
    WORDS,
)

Sizes = dict[str, Any]


def asked(config: Any, needed: Sizes) -> Sizes:
    """What of the ``needed`` is no part of ``config``, and a backbone that every stack has."""
    found = {
        name: value
        for name, value in needed.items()
        if hasattr(config, name) and not hasattr(getattr(config, name), "to_dict")
    }
    backbone = getattr(config, "backbone_config", None)
    if getattr(backbone, "model_type", "") == "timm_backbone" or getattr(config, "use_timm_backbone", False):
        levels = {"out_indices": list(getattr(backbone, "out_indices", None) or STAGES)}
        switches = {name: value for name, value in PLAIN_BACKBONE.items() if hasattr(config, name)}
        found |= {"backbone_config": {**BACKBONE, **levels}, **switches}
    return found


def narrowed(config: Any, factor: int, needed: Sizes) -> Any:
    """``config`` in its own proportions and what is ``needed``: few layers, one of each kind; narrow."""
    own = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    depth = getattr(config, "num_hidden_layers", None)
    kept = _kept(own, depth) if isinstance(depth, int) else [*range(LAYERS)]
    said: dict[str, Any] = {}
    for name, value in own.items():
        if hasattr(value, "to_dict"):
            if name != "generation_config":
                said[name] = narrowed(value, factor, needed.get(name) or {}).to_dict()
        elif isinstance(value, (list, tuple)) and value:
            by_layer = len(value) == depth and name not in ("hidden_sizes", "depths")
            said[name] = (
                type(value)(value[layer] for layer in kept)
                if by_layer
                else type(value)(_of_each(name, [*value], factor, kept))
            )
        elif isinstance(value, int) and not isinstance(value, bool):
            said[name] = _of_one(name, value, factor, len(kept))
    said = {name: value for name, value in said.items() if value != own[name]} | by_chance(config)
    said |= {name: value for name, value in PERIOD.items() if name in own}
    said |= {name: value for name, value in UNSAID.items() if own.get(name, 0) is None}
    return type(config)(**said | asked(config, needed))


def _kept(own: dict[str, Any], depth: int) -> list[int]:
    """Which layers stay: the first of each kind, and more from the first on."""
    lists = [value for value in own.values() if isinstance(value, (list, tuple)) and len(value) == depth]
    kinds = [str([each[layer] for each in lists]) for layer in range(depth)]
    first = [layer for layer in range(depth) if kinds.index(kinds[layer]) == layer]
    more = [layer for layer in range(depth) if layer not in first]
    return sorted([*first, *more[: max(0, LAYERS - len(first))]])


def _of_one(name: str, value: int, factor: int, depth: int) -> int:
    if "vocab" in name:
        return min(value, WORDS)
    if re.search(r"token_(id|index)$", name):
        return value if value < WORDS else WORDS // 2 + value % (WORDS // 2)
    if DEPTH.search(name):
        return min(value, depth)
    least = GROUPS if "channels" in name else 1
    return max(least, value // factor) if value >= 4 * factor and not NO_WIDTH.search(name) else value


def _of_each(name: str, values: list[Any], factor: int, kept: list[int]) -> list[Any]:
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    if whole and name.endswith("depths"):
        return [min(value, 2) for value in values]
    if whole and re.search(r"indices|indexes|idxs?$|_layers$", name):
        return [place for place, layer in enumerate(kept) if layer in values] or values[:1]
    return [_of_one(name, value, factor, len(kept)) for value in values] if whole else values


def by_chance(config: Any) -> dict[str, float]:
    return {name: 0.0 for name, own in vars(config).items() if _is_chance(name, own)}


def _is_chance(name: str, own: Any) -> bool:
    return isinstance(own, float) and any(word in name for word in ("drop", "jitter", "mask_time_prob"))
