"""A lock that a fork cannot leave locked.

A process that forks while another thread holds a lock hands its child a lock that nobody will ever
release: the child's first import would wait forever.
"""

from __future__ import annotations

import os
import weakref
from _thread import RLock


class Lock(RLock):  # type: ignore[misc]  # final in its stub only
    """A reentrant lock, for a ``with`` block; free in a forked child unless the forking thread held it.

    It is held while our own lists and the attributes they speak of are read and written, never while
    foreign code (a patch, a callback, an import) runs: that may wait for an import lock whose
    holder waits for us. Nothing of it is written in Python: a Ctrl-C cannot come between the end of a
    block and the release.
    """

    def __init__(self) -> None:
        super().__init__()
        _all.add(self)

    def renew(self) -> None:
        """Called in a forked child."""
        if not self._is_owned():  # type: ignore[attr-defined]
            self._at_fork_reinit()  # type: ignore[attr-defined]


_all: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_all):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
