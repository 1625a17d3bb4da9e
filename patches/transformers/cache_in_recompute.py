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

The change: how long a ``DynamicCache`` was after each layer's forward is remembered. What a backward hands to
one that is as long still is the recomputation of what it holds. It is not kept again: the layer gets what it
got in the forward. A cache that the backward made itself (a text in chunks, the whole of it checkpointed; a
copy of a prefix) or has cropped grows as it did.

Upstream: https://github.com/pytorch/pytorch/issues/155171, https://github.com/oumi-ai/oumi/issues/1376,
https://github.com/huggingface/transformers/issues/36040
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.by_identity import ByIdentity

# Lengths after a forward, by layer. In no closure, for dynamo takes those of a traced cache apart.
_known = ByIdentity()
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

    def update(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(self, *args, **kwargs)
        layer = LAYER.of(args, kwargs)
        if in_backward() == -1:
            result = original(self, *args, **kwargs)
            _note(self, layer, result)
            return result
        length = (_known.get(self) or {}).get(layer) if torch.is_grad_enabled() else None
        again = _as_in_forward(self, length, KEYS.of(args, kwargs), VALUES.of(args, kwargs), layer)
        return original(self, *args, **kwargs) if again is None else again

    patch.wrap(module.DynamicCache, "update", update)


def _note(cache: Any, layer: int, result: Any) -> None:
    """Remember how long ``cache`` is; layers of a script's own may hand out what has no length."""
    import torch

    if not (isinstance(result, tuple) and result and isinstance(result[0], torch.Tensor)):
        return
    with torch._C.DisableTorchFunction():  # a mode of a script's may count what it sees
        length = result[0].shape[-2] if result[0].dim() > 1 else None
    if length is not None:
        lengths = _known.get(cache)
        if lengths is None:
            _known.put(cache, lengths := {})
        lengths[layer] = length


def _as_in_forward(
    cache: Any, length: int | None, keys: Any, values: Any, layer: int
) -> tuple[Any, Any] | None:
    """What the cache gave the layer in the forward; None where it does not hold that.

    Args:
        cache: a DynamicCache.
        length: how long it was for this layer after its forward, if it was in one.
        keys: of shape [batch, heads, new, width], as are the values.
        values: to go with them.
        layer: its number.
    """
    import torch

    new = keys.shape[-2]
    if length is None or (seen := cache.get_seq_length(layer)) != length:
        return None
    if seen == new:
        return keys, values
    held = _held(cache, layer)
    if held is None or held[0].shape[-2] != seen or seen < new:
        return None
    before = [part[..., : seen - new, :] for part in held]
    return torch.cat([before[0], keys], dim=-2), torch.cat([before[1], values], dim=-2)


def _layers(cache: Any) -> int:
    return len(cache.layers if hasattr(cache, "layers") else cache.key_cache)


def _held(cache: Any, layer: int) -> tuple[Any, Any] | None:
    if layer >= _layers(cache):
        return None
    if hasattr(cache, "layers"):
        holder = cache.layers[layer]
        return (holder.keys, holder.values) if hasattr(holder, "keys") else None
    return cache.key_cache[layer], cache.value_cache[layer]
