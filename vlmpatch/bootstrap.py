"""What ``import vlmpatch`` does: as little as can be.

A lazy finder goes first among the finders and knows the names of all targets. The engine, the catalog and
everything they import are loaded when the first of those names is imported, or when a program calls
``vlmpatch.status()`` and its like: a process that never trains a model pays for none of it.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock

from vlmpatch.catalog import index
from vlmpatch.catalog.location import default_path

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from vlmpatch.engine.engine import Engine

_lock = RLock()
_engine: Engine | None = globals().get("_engine")  # who reloads this in a notebook starts no second one


class LazyFinder:
    """A meta path finder that finds nothing, and wakes the engine before the first target is imported."""

    def __init__(self, names: frozenset[str], tops: frozenset[str]) -> None:
        self._names, self._tops = names, tops

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The import system's question; see ``importlib.abc.MetaPathFinder``."""
        if fullname in self._names or fullname.partition(".")[0] in self._tops:
            return engine().hooks.find_spec(fullname, path, target)
        return None


def arm() -> None:
    """Wait for the targets; called by ``import vlmpatch``, and without effect when called again."""
    if _engine is not None or any(isinstance(finder, LazyFinder) for finder in sys.meta_path):
        return
    known = index.read(default_path())
    asked = any(name.startswith("VLMPATCH_") for name in os.environ)
    # Wishes of the environment and faults of the catalog are looked at, and spoken of, at the start.
    if known is None or asked or not known["names"].isdisjoint(sys.modules):
        engine()
    else:
        sys.meta_path.insert(0, LazyFinder(known["names"], known["tops"]))


def engine() -> Engine:
    """The engine of this process, started when it is first asked for."""
    global _engine
    if _engine is None:
        from vlmpatch.engine.engine import make

        made = None
        with _lock:
            if _engine is None:
                _engine = made = make(os.environ)
        if made is not None:
            # Not under the lock: patches import, and a thread that holds an import lock may wait for us.
            for finder in [finder for finder in sys.meta_path if isinstance(finder, LazyFinder)]:
                sys.meta_path.remove(finder)  # never the whole list anew: others put theirs in meanwhile
            made.arm()
            if made.asked.watch:  # asked for by name: the one tool that runs inside a training
                from vlmpatch.watch import training

                training.arm(made.hooks, made.journal)
    return _engine


def _after_fork() -> None:
    global _lock
    _lock = RLock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
