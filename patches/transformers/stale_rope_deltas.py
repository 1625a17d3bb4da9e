"""Nothing, or ``shapes cannot be multiplied``: Qwen2-VL and others use positions of an earlier forward.

What the user sees: nothing, on transformers 4.47 and 4.48. Losses look ordinary; the three-dimensional
positions of image tokens (M-RoPE) are right in a process's first forward alone. On 5.2 and 5.3 a training
forward after ``generate()`` over more rows, as GRPO makes it, ends in ``mat1 and mat2 shapes cannot be
multiplied (15x0 …)`` or ``Sizes of tensors must match``.

Why: the model keeps ``rope_deltas``, by how much a prompt's images shift the positions of what follows, for
the decoding to come. 4.47 computes positions where none is kept, or where ``cache_position`` says that a
prompt begins. A training forward passes no ``cache_position``, finds what the one before left, and counts
0, 1, 2, … on all three axes. 5.2 takes what is kept where it cannot compute positions: in a batch of text,
and from 5.3 on in one without ``mm_token_type_ids``.

Since transformers 4.47.0 (Qwen2-VL) until 4.49.0, which asks the cache; since 5.2.0 (the whole family) until
5.4.0.

The change: before a forward over a whole input (nothing in a cache, no positions given) what an earlier one
left is forgotten. Decoding finds what its own prompt left, as before.

Upstream: https://github.com/huggingface/transformers/pull/36013 (ended it in 4.49),
https://github.com/huggingface/transformers/pull/44873 (in 5.4)
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, assign, signature

WHERE = {  # the last part of a target, and who keeps the deltas there
    "modeling_qwen2_vl": "Qwen2VLModel",
    "modeling_qwen2_5_vl": "Qwen2_5_VLModel",
    "modeling_qwen3_vl": "Qwen3VLModel",
    "modeling_qwen3_vl_moe": "Qwen3VLMoeModel",
    "modeling_qwen3_5": "Qwen3_5Model",
    "modeling_qwen3_5_moe": "Qwen3_5MoeModel",
    "modeling_glm4v": "Glm4vModel",
    "modeling_glm4v_moe": "Glm4vMoeModel",
}
OLD, OLD_STALE = "Qwen2VLForConditionalGeneration", "cache_position[0] == 0) or self.rope_deltas is None:"
COMPUTES, STALE = "compute_3d_position_ids", "elif self.rope_deltas is not None:"
ASKS = ("input_ids", "position_ids", "past_key_values")


def look(code: Code) -> str | None:
    """What is kept for a prompt's decoding must be used without a look at the cache."""
    owner, name = _owner(code.module), COMPUTES
    if code.function(f"{owner}.{name}") is None:
        owner, name = OLD, "forward"
    function = code.function(f"{owner}.{name}")
    if function is None or (STALE if name == COMPUTES else OLD_STALE) not in function:
        return "a forward without a cache does not use what an earlier one left"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Forget what is kept before a whole input's positions are asked for."""
    owner, name = getattr(module, _owner(module.__name__), None), COMPUTES
    if not hasattr(owner, name):
        owner, name = getattr(module, OLD), "forward"
    asks = _asks(getattr(owner, name))

    def forgetting(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        ids, positions, cache = (asked.of(args, kwargs) for asked in asks)
        if ids is not None and positions is None and not _filled(cache):
            # What the call below sets anew, or does without: an undo has nothing to put back.
            assign(self, "rope_deltas", None)
        return original(self, *args, **kwargs)

    patch.wrap(owner, name, forgetting)


def _owner(module: str) -> str:
    return WHERE[module.rpartition(".")[2]]


def _asks(function: Callable[..., Any]) -> list[Argument]:
    """Of ``ASKS``; one that ``function`` does not have comes by its name, if at all."""
    _self, *names = signature(function).parameters
    return [Argument(names.index(name) if name in names else len(names), name) for name in ASKS]


def _filled(cache: Any) -> bool:
    return cache is not None and bool(cache.get_seq_length())
