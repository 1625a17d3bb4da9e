"""``get_rope_index() missing 1 required positional argument: 'mm_token_type_ids'``, in ms-swift 4.

What the user sees: with ``--streaming true`` Qwen2-VL, Qwen2.5-VL or Qwen3-VL on transformers 5.3 or newer
ends at the first batch of texts without an image; a batch that has both ends in ``IndexError: index … is out
of bounds``. Rows that all have an image train, and so do rows that are not streamed.

Why: a row is marked by what its tokens are where it has an image, and not where it has none; the collator
gives such a row zeros where it lacks the mark. Rows of a stream share their columns: the row has the mark,
and it is ``None``.

Since ms-swift 4.2 (4.2.3 at the latest), 4.6.0 included.

The change: a mark that is ``None`` is none, and the collator fills it in.

Upstream: no report of this was found; https://github.com/modelscope/ms-swift/issues/9287 ends in the same
function for another reason.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

OWNER, NAME = "Qwen2VLTemplate", "_data_collator"
MARK = "mm_token_type_ids"
ROWS = Argument(0, "batch")


def look(code: Code) -> str | None:
    """The collator must ask whether a row has the mark, and not what it is."""
    function = code.function(f"{OWNER}.{NAME}")
    asks = function is not None and f"'{MARK}' not in b" in function
    return None if asks else "the collator does not look for a row's mark"


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand the collator rows without the marks that are ``None``."""

    def collate(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        for row in ROWS.of(args, kwargs) or ():
            if row.get(MARK, row) is None:
                del row[MARK]  # the collator writes into its rows itself
        return original(self, *args, **kwargs)

    patch.wrap(getattr(module, OWNER), NAME, collate)
