"""Nothing is seen: the resampler's position table holds garbage, so the vision features do.

Why: ``Resampler.pos_embed`` is a buffer that no checkpoint holds. From 5.0 transformers builds every
model without memory and gives such buffers uninitialised memory afterwards; a model is meant to fill
them again in ``_init_weights``. The remote code of MiniCPM-V and MiniCPM-o fills its table in ``__init__``
only.

Since transformers 5.0.0rc0.

The change: ``_init_weights`` of the model recomputes the table, by the resampler's own method.

Upstream: https://github.com/huggingface/transformers/issues/48892
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

from .._shared.minicpmv import NOT_THE_MODEL, model_class, model_name

MODULE = Argument(0, "module")
_FILL = "_set_2d_pos_cache"


def look(code: Code) -> str | None:
    """The model must have a resampler and no word about its table."""
    name = model_name(code)
    if name is None:
        return NOT_THE_MODEL
    if "Resampler" not in code.names:
        return "this generation of the model has no Resampler with a position table"
    own = code.function(f"{name}._init_weights") or code.function(f"{name}PreTrainedModel._init_weights")
    if own is not None and _FILL in own:
        return f"the model calls {_FILL} itself"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Fill the table where transformers asks for missing values."""

    def and_the_table(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        part = MODULE.of(args, kwargs)
        if isinstance(part, module.Resampler) and hasattr(part, _FILL):
            getattr(part, _FILL)(part.max_size, device=part.pos_embed.device)

    patch.wrap(model_class(module), "_init_weights", and_the_table)
