"""``Recomputed values … have different metadata``, or attention over everything twice: the cache grew again.

What the user sees: with checkpointing that is not transformers' own (torch's ``checkpoint_wrapper``, FSDP's
``activation_checkpointing``, ``checkpoint`` calls of a model) ``saved metadata: [1, 12, 171, 128]``,
``recomputed metadata: [1, 12, 342, 128]``; ``The expanded size of the tensor (46) must match the existing
size (23)``; ``Attention mask should be of size (2, 1, 93, 186)``; under ``use_reentrant=True`` nothing, and
wrong gradients.

Why: ``use_cache`` is True unless the caller says otherwise, in training too. The forward appends keys and
values to the cache, and the recomputation of the same layer appends them once more. transformers drops the
cache in its own checkpointing only.

In every transformers looked at, 4.45 to 5.23.

The change: while a backward runs, what is handed to a ``DynamicCache`` is the recomputation of what it holds.
It is not kept again: the layer gets what it got in the forward. A cache that is filled for the first time in
that backward (a text in chunks, the whole of it checkpointed) grows as it did.

Upstream: https://github.com/pytorch/pytorch/issues/155171, https://github.com/oumi-ai/oumi/issues/1376,
https://github.com/huggingface/transformers/issues/36040
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakSet

from vlmpatch.api import Argument, Code, Patch, Unrecognised

KEYS, VALUES, LAYER = Argument(0, "key_states"), Argument(1, "value_states"), Argument(2, "layer_idx")


def look(code: Code) -> str | None:
    """There must be a cache that grows."""
    if code.class_names("DynamicCache") is None:
        raise Unrecognised("there is no DynamicCache")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let nothing be appended in a backward."""
    import torch

    in_backward = torch._C._current_graph_task_id
    compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
    made_here: WeakSet[Any] = WeakSet()  # caches that a backward has filled from the beginning

    def update(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not compiling() and in_backward() != -1 and torch.is_grad_enabled() and self not in made_here:
            again = _as_in_forward(self, *(each.of(args, kwargs) for each in (KEYS, VALUES, LAYER)))
            if again is not None:
                return again
            if not _grown(self):
                made_here.add(self)
        return original(self, *args, **kwargs)

    patch.wrap(module.DynamicCache, "update", update)


def _as_in_forward(cache: Any, keys: Any, values: Any, layer: int) -> tuple[Any, Any] | None:
    """What the cache gave the layer in the forward; None where it cannot be told."""
    import torch

    new, seen = keys.shape[-2], cache.get_seq_length(layer)
    if seen == new:
        return keys, values
    held = _held(cache, layer)
    if held is None or held[0].shape[-2] != seen or seen < new:
        return None
    before = [part[..., : seen - new, :] for part in held]
    return torch.cat([before[0], keys], dim=-2), torch.cat([before[1], values], dim=-2)


def _grown(cache: Any) -> bool:
    """Whether ``cache`` holds anything."""
    return any(cache.get_seq_length(layer) for layer in range(_layers(cache)))


def _layers(cache: Any) -> int:
    return len(cache.layers if hasattr(cache, "layers") else cache.key_cache)


def _held(cache: Any, layer: int) -> tuple[Any, Any] | None:
    if layer >= _layers(cache):
        return None
    if hasattr(cache, "layers"):
        holder = cache.layers[layer]
        return (holder.keys, holder.values) if hasattr(holder, "keys") else None
    return cache.key_cache[layer], cache.value_cache[layer]
