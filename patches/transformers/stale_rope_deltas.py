"""Nothing; Qwen2-VL trains with the positions of a text from its second forward on (transformers 4.47, 4.48).

What the user sees: nothing. Losses look ordinary; the three-dimensional positions of image tokens (M-RoPE)
are right in a process's first forward alone.

Why: the model keeps ``rope_deltas``, by how much a prompt's images shift the positions of what follows, for
the decoding to come. A forward computes positions where none is kept, or where ``cache_position`` says that
a prompt begins. A training forward passes no ``cache_position``, finds what the one before left, and counts
0, 1, 2, … on all three axes.

Since transformers 4.47.0, until 4.49.0, which asks the cache.

The change: before a forward over a whole input (nothing in a cache, no positions given) what an earlier one
left is forgotten. Decoding finds what its own prompt left, as before.

Upstream: https://github.com/huggingface/transformers/issues/36009,
https://github.com/huggingface/transformers/pull/36013
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

KEEPS = "Qwen2VLForConditionalGeneration"
STALE = "cache_position[0] == 0) or self.rope_deltas is None:"
ASKS = ("input_ids", "position_ids", "past_key_values")


def look(code: Code) -> str | None:
    """A forward must take what is kept for a prompt's without looking at the cache."""
    forward = code.function(f"{KEEPS}.forward")
    if forward is None or STALE not in forward:
        return "a forward without a cache computes its positions"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Forget what is kept before a forward over a whole input."""
    owner = getattr(module, KEEPS)
    places = _places(owner.forward)

    def forward(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        ids, positions, cache = (_argument(places, name, args, kwargs) for name in ASKS)
        if ids is not None and positions is None and not _filled(cache):
            self.rope_deltas = None
        return original(self, *args, **kwargs)

    patch.wrap(owner, "forward", forward)


def _places(function: Callable[..., Any]) -> dict[str, int]:
    """Where each argument stands, ``self`` not counted."""
    return {name: place - 1 for place, name in enumerate(inspect.signature(function).parameters)}


def _argument(places: Mapping[str, int], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    place = places[name]
    return args[place] if place < len(args) else kwargs.get(name)


def _filled(cache: Any) -> bool:
    return cache is not None and bool(cache.get_seq_length())
