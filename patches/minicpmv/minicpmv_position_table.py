"""Nothing is seen: the resampler's position table holds garbage, so the vision features do.

Why: ``Resampler.pos_embed`` is a buffer that no checkpoint holds. From 5.0 transformers builds every
model without memory and gives such buffers uninitialised memory afterwards; a model is meant to fill
them again in ``_init_weights``. MiniCPM-V's remote code fills its table in ``__init__`` only.

Since transformers 5.0.0rc0.

The change: ``_init_weights`` of the model recomputes the table, by the resampler's own method.

Upstream: https://github.com/huggingface/transformers/issues/48892
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from ._minicpmv import NOT_THE_MODEL, has_model

_FILL = "_set_2d_pos_cache"


def look(code: Code) -> str | None:
    """The model must have a resampler and no word about its table."""
    if not has_model(code):
        return NOT_THE_MODEL
    if "Resampler" not in code.names:
        return "this generation of the model has no Resampler with a position table"
    if _FILL in code.source:
        return f"the model calls {_FILL} itself"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Fill the table where transformers asks for missing values."""

    def and_the_table(original: Any, self: Any, part: Any) -> None:
        original(self, part)
        if isinstance(part, module.Resampler) and hasattr(part, _FILL):
            getattr(part, _FILL)(part.max_size, device=part.pos_embed.device)

    patch.wrap(module.MiniCPMV, "_init_weights", and_the_table)
