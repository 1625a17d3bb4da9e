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

The change: positions of three dimensions are counted anew along a row, from each place on where those of the
first axis fall: within a text, an image or a video they do not. So one row is no packed rows, and texts
packed into it are told apart. Positions of one dimension are a row, and those of two are handed on as they
are.

Upstream: https://github.com/huggingface/transformers/pull/44911,
https://github.com/huggingface/transformers/pull/47342
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

ASKED, MADE = "_is_packed_sequence", "prepare_fa_kwargs_from_position_ids"
POSITIONS = Argument(0, "position_ids")  # of both
AXES = 3  # dimensions of positions that say where along each axis


def look(code: Code) -> str | None:
    """It must be asked by a function, and of the second dimension whatever there are."""
    asked, made = code.function(ASKED), code.function(MADE)
    if asked is None:
        return "packed rows are looked for elsewhere"
    if any("dim()" in function or "ndim" in function for function in (asked, made) if function is not None):
        return "dimensions of positions are seen to"
    if made is None:
        raise Unrecognised(f"{code.module} makes boundaries in another way than it did")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Ask of positions along a row, and make boundaries of these."""

    def of_a_row(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        positions = POSITIONS.of(args, kwargs)
        dimensions = 0 if positions is None else positions.dim()
        if dimensions == AXES and positions.shape[1] == 1:  # not of patches, by their place along two axes
            args, kwargs = POSITIONS.replaced(args, kwargs, counted(positions[0]))
        elif dimensions == 1:
            args, kwargs = POSITIONS.replaced(args, kwargs, positions[None])
        return original(*args, **kwargs)

    for name in (ASKED, MADE):
        patch.wrap(module, name, of_a_row)


def counted(positions: Any) -> Any:
    """How many places each is behind the last fall of ``positions``, which are of shape [rows, length]."""
    import torch

    places = torch.arange(positions.shape[-1], device=positions.device)
    falls = torch.zeros_like(positions, dtype=torch.bool)
    falls[..., 1:] = positions[..., 1:] < positions[..., :-1]
    return places - torch.where(falls, places, 0).cummax(-1).values
