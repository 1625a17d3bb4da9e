"""Nothing, while RecurrentGemma's keys and values never learn: they come out of a cache without a gradient.

What the user sees: nothing. Without checkpointing ``k_proj`` and ``v_proj`` of every attention layer have no
gradient and stay what they were, and what is before them lacks what would have come through them. With LoRA
on those layers their A and B never train.

Why: ``use_cache`` is True where nothing is said, in training too, and the layer takes keys and values
back out of the cache that it has just written, under ``torch.no_grad``. With checkpointing there is no cache.

Since transformers 4.40, until 5.4.

The change: where a gradient is wanted and the input begins, the layer gets the same numbers with their graph:
what the cache holds, with the new keys and values in their places. The cache itself is as before. Decoding,
one token at a time, is left alone, and so are positions past the window.

Upstream: https://github.com/huggingface/transformers/pull/30143 (brought it)
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.compiling import compiling

CACHED = "RecurrentGemmaSdpaAttention._update_cache"
GRADELESS = "    @torch.no_grad()\n    def _update_cache("


def look(code: Code) -> str | None:
    """The cache must be a method of the attention, under ``no_grad``."""
    if GRADELESS in code.source:
        if code.function(CACHED) is None:
            raise Unrecognised(f"{code.module} has no {CACHED}")
        return None
    return "keys and values do not go through a cache without a gradient"


def apply(patch: Patch, module: ModuleType) -> None:
    """Give what comes out of the cache the graph of what went in."""
    import torch

    traced = compiling()

    def update(original: Callable[..., Any], self: Any, /, *new: Any, **told: Any) -> Any:
        kept = original(self, *new, **told)
        places = told.get("cache_position")
        wanted = torch.is_grad_enabled() and any(states.requires_grad for states in new)
        if not wanted or places is None or len(places) == 1 or traced():
            return kept
        window = self.config.attention_window_size
        if len(places) > window:
            return tuple(states[:, :, -window:] for states in new)
        if int(places[-1]) >= window:
            return kept
        return tuple(
            old.index_copy(2, places, states.to(old.dtype)) for old, states in zip(kept, new, strict=True)
        )

    patch.wrap(module.RecurrentGemmaSdpaAttention, "_update_cache", update)
