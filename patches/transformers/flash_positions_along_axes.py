"""``CUDA error: an illegal memory access was encountered`` with flash attention and one row a batch.

What the user sees: that error in GLM-4.5V and Ernie 4.5 VL with ``attn_implementation="flash_attention_2"``,
and in Qwen3.5 on transformers 5.2 and 5.3, whatever the batch holds if it is one row; or, in Pixtral and
Mistral Small 3.1 on 4.56 and 4.57, ``IndexError: tuple index out of range``.

Why: whether a batch is of packed rows is asked of its positions as if they had two dimensions. Those of these
models have three, an axis first; that they are no numbers counted up is always true of the wrong dimension.
Boundaries are then made of the numbers of all axes, and end at three times the batch's length. Pixtral's have
one dimension, and are asked for the second.

Since 4.56, which asks so; 5.24 has it still. Qwen3.5 hands on positions of the text since 5.4, and Pixtral
two dimensions since 5.0.

The change: positions of three dimensions are no packed rows, as they are none to the masks of SDPA, and those
of one are a row. The answer to those of two is what it was.

Upstream: https://github.com/huggingface/transformers/pull/44911,
https://github.com/huggingface/transformers/pull/47342
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

NAME, POSITIONS = "_is_packed_sequence", Argument(0, "position_ids")
AXES = 3  # dimensions of positions that say where along each axis


def look(code: Code) -> str | None:
    """It must be asked by a function, and of the second dimension whatever there are."""
    function = code.function(NAME)
    if function is None:
        return "packed rows are looked for elsewhere"
    if "dim()" in function or "ndim" in function:
        return "dimensions of positions are seen to"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Answer for positions of other than two dimensions."""

    def packed(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        positions = POSITIONS.of(args, kwargs)
        dimensions = 0 if positions is None else positions.dim()
        if dimensions == AXES:
            return False
        if dimensions == 1:
            args, kwargs = POSITIONS.replaced(args, kwargs, positions[None])
        return original(*args, **kwargs)

    patch.wrap(module, NAME, packed)
