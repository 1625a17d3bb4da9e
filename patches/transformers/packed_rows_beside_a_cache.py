"""Packed rows without checkpointing: every row attends to the ones before it.

What the user sees: nothing. Rows packed into one, told apart by ``position_ids`` that begin again at 0,
train as one long row where checkpointing is off and nothing was said about ``use_cache``: gradients are 57 %
off for a small Llama, 75 to 143 % for others. With checkpointing on, or ``use_cache=False``, they are right.

Why: the mask looks for rows in ``position_ids`` only where there is no cache, and ``use_cache`` is True
unless the caller says otherwise, in training too. The cache is empty then and changes nothing else.

Since transformers 4.53, which brought the search (before it, packed rows are told apart by flash attention
only); 5.24 has it still, under another name of the argument.

The change: while gradients are recorded, beside a cache that holds nothing yet, the mask is what it is
without the cache, if ``position_ids`` begin again: every break is at a 0, and one at least comes after a
position above 0. Positions with gaps, all of them zero, a mask of the caller's own, a cache that holds
something, inference, a model that is being compiled or traced, and positions without numbers (a model on the
meta device, under FakeTensorMode or vmap) see no change.

Upstream: https://github.com/huggingface/transformers/pull/39194
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised, signature

from .._shared.compiling import compiling
from .._shared.packed_positions import begin_again

PREPARE, FIND = "_preprocess_mask_arguments", "find_packed_sequence_indices"
_NEEDED = ("attention_mask", "position_ids")
_CACHE = ("past_key_values", "cache")  # the second from transformers 5.24 on
_SIZES = 3  # what comes before the lengths and offsets in its result: whether to stop, the mask, the rows


def look(code: Code) -> str | None:
    """The search must be there, and only without a cache."""
    function = code.function(PREPARE)
    if function is None or code.function(FIND) is None:
        return "rows are not looked for in position_ids here"
    cache = next((name for name in _CACHE if name in function.parameters), None)
    if cache is None or any(name not in function.parameters for name in _NEEDED):
        raise Unrecognised(f"{PREPARE} takes other arguments than it did")
    if f"{cache} is None" not in function:
        return "rows are looked for beside a cache too"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Look for rows beside an empty cache too."""
    import torch

    called, tracing = signature(getattr(module, PREPARE)), compiling()
    cached = next(name for name in _CACHE if name in called.parameters)

    def prepare(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if result[0] or not torch.is_grad_enabled() or tracing() or torch.jit.is_tracing():
            return result
        said = called.bind(*args, **kwargs)
        mask, positions = (said.arguments.get(name) for name in _NEEDED)
        cache = said.arguments.get(cached)
        if mask is None and cache is not None and positions is not None and begin_again(positions):
            said.arguments[cached] = None
            without = original(*said.args, **said.kwargs)
            if without[_SIZES:] == result[_SIZES:]:
                return without
        return result

    patch.wrap(module, PREPARE, prepare)
