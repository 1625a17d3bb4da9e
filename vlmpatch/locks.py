"""A lock that a fork cannot leave locked.

A process that forks while another thread holds a lock hands its child a lock that nobody will ever
release: the child's first import would wait for ever.
"""

from __future__ import annotations

import os
import threading
import weakref


class Lock:
    """A reentrant lock, for a ``with`` block; free in a forked child unless the forking thread held it.

    It is held while our own lists and the attributes they speak of are read and written, never while
    code of somebody else (a patch, a callback, an import) runs: that may wait for an import lock whose
    holder waits for us.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_exception: object) -> None:
        self._lock.release()

    def _renew(self) -> None:
        if not self._lock._is_owned():  # type: ignore[attr-defined]
            self._lock = threading.RLock()


_all: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_all):
        lock._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
