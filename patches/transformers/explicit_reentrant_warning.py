"""``use_reentrant=True``, said in so many words, where it is known to fail.

What the user sees: ``Expected to mark a variable ready only once`` (DDP), ``The parameter N has
already been reduced`` (ZeRO-1/2), a bare ``AssertionError`` (ZeRO-3), or wrong gradients and no error.

Why: reentrant checkpointing runs a nested backward for each segment. With more than one rank that
breaks the counting of gradients as soon as a parameter is used in two segments before one backward,
or DDP looks for unused parameters.

In every release of torch and transformers; there is nothing to mend. What the user said stands.

The change: one warning, when a model is switched to it in a run of several ranks.

Upstream: https://github.com/huggingface/accelerate/issues/389,
https://github.com/modelscope/ms-swift/issues/3128
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.checkpoint_kwargs import look_at_sink, on_reentrant

_WARNING = (
    "use_reentrant=True was passed in so many words and stands. With several ranks it is known to end in "
    "'marked ready only once' (DDP), 'already been reduced' (ZeRO-1/2), an AssertionError or silently wrong "
    "vision gradients (ZeRO-3) when a checkpointed module runs twice before a backward. "
    "Leave it out, or pass False, and the run trains."
)


def look(code: Code) -> str | None:
    """The sink through which every model gets its checkpoint function must be as we know it."""
    look_at_sink(code)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Warn when the checkpoint function says ``use_reentrant=True`` and there are several ranks."""

    def warn(model: Any) -> None:
        if _several_ranks():
            patch.warn("reentrant", _WARNING)

    on_reentrant(patch, module, warn)


def _several_ranks() -> bool:
    return os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")
