"""Files that a user names: regular ones, and no more of them than can be meant."""

from __future__ import annotations

import os
import stat

LARGEST = 64 << 20  # bytes


def read(path: str, largest: int = LARGEST, cut: bool = False) -> str:
    """The text of ``path``.

    Args:
        path: a file; what waits for a writer or never ends (a FIFO, a device) is not opened.
        largest: how many bytes are read.
        cut: a larger file's beginning is enough.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
    """
    # Not waiting: to open a FIFO takes a process at its other end.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with open(descriptor, "rb") as handle:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "is no regular file", path)
        data = handle.read(largest + 1)
    if len(data) > largest and not cut:
        raise OSError(0, f"is larger than {largest} bytes", path)
    return data[:largest].decode(errors="replace")
