"""Whether the runs of ``verify`` have room on the disk: a full one says nothing of a patch."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

MIB = 1 << 20
LEAST = MIB  # less is nothing
# What the runs of every patch on one stack wrote at most: 48 MiB in 14 runs, models and gradients alike.
BASE, A_RUN = 8 * MIB, 4 * MIB
FULL = (errno.ENOSPC, errno.EDQUOT)
SHARED = "/dev/shm"  # where ranks hand each other memory, in a container often 64 MB
_WORDS = re.compile(
    r".*(?:No space left on device|Disk quota exceeded|PytorchStreamWriter failed|file write failed).*"
)


class NoRoom(Exception):
    """A place is full.

    Attributes:
        place: the folder.
        free: bytes that are left in it.
        needed: bytes that the runs take.
    """

    def __init__(self, place: str, needed: int) -> None:
        super().__init__(place)
        self.place, self.free, self.needed = place, _free(Path(place)), needed


def needed(runs: int) -> int:
    """Bytes that so many runs write."""
    return BASE + runs * A_RUN


def require(runs: int) -> None:
    """Look before anything is started.

    Raises:
        NoRoom: the folder for temporary files has less than the runs write, or there is none.
    """
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:  # it writes a file into each that it tries
        raise NoRoom(os.environ.get("TMPDIR", "/tmp"), needed(runs)) from None
    if _free(Path(folder)) < needed(runs):
        raise NoRoom(folder, needed(runs))


def recognise(folder: Path, said: Iterable[str], runs: int) -> None:
    """Look at runs that are over.

    Args:
        folder: what they wrote to.
        said: their errors, and what they printed.
        runs: how many there are in all.

    Raises:
        NoRoom: it ran full, or one of them says that another place did.
    """
    if _free(folder) < LEAST:
        raise NoRoom(str(folder.parent), needed(runs))
    for line in filter(None, map(_WORDS.search, said)):
        raise NoRoom(SHARED if SHARED in line[0] else str(folder.parent), needed(runs))


def _free(place: Path) -> int:
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return 0
