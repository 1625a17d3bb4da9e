"""Whether every rank of a group does what is about to be done: ranks tell each other over the job's store.

For what only some ranks may come to, as the script would have it. A collective there would hang; here those
that came learn within a minute that they are not all, and from then on nobody asks again.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from .distributed import group_name, job_store, run_prefix, there

WAIT = 60.0  # seconds for the other ranks to come
ALL, NONE = "all", "none"


class AllOrNone:
    """A place in the script that ranks come to again and again; each counts how often.

    Args:
        name: what it is for; ranks of one name and group hear each other.
        group: the process group.
    """

    def __init__(self, name: str, group: Any) -> None:
        self._key = f"{run_prefix()}/together/{name}/{group_name(group)}"
        self._size = sys.modules["torch.distributed"].get_world_size(group)
        self._came = 0
        self.alone = False  # some ranks did not come once, or nobody could be asked
        self.missed = False  # some did not come

    def come(self) -> bool:
        """Wait for the other ranks, a minute at most; returns whether all came, which is the same on each."""
        if self.alone:
            return False
        try:
            self.missed = not self._all_come(job_store())
        except Exception:  # a store of a script's own may offer no more than what a job begins with
            self.alone = True
            return False
        self.alone = self.missed
        return not self.alone

    def _all_come(self, store: Any) -> bool:
        self._came += 1
        key = f"{self._key}/{self._came}"
        last = store.add(f"{key}/here", 1) == self._size
        until = time.monotonic() + WAIT
        while not last and not there(store, key) and time.monotonic() < until:
            time.sleep(0.001)
        # the first decision stands: a rank that comes too late finds that the others have gone on
        decided = store.compare_set(key, "", ALL if last else NONE).decode()
        if last:
            self._forget(store)
        return bool(decided == ALL)

    def _forget(self, store: Any) -> None:
        """The time before: all have come once more, so all have read how that ended."""
        with contextlib.suppress(RuntimeError):  # a store that cannot, or the key of the first time
            for key in (f"{self._key}/{self._came - 1}", f"{self._key}/{self._came - 1}/here"):
                store.delete_key(key)
