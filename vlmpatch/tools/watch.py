"""``WatchCallback`` under the name that scripts import it by; it is ``vlmpatch.watch.training``'s."""

from __future__ import annotations

from typing import Any

from vlmpatch.watch import training


def __getattr__(name: str) -> Any:
    """``WatchCallback``, made when it is asked for: it derives from a class of transformers."""
    if name != "WatchCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return training.WatchCallback
