"""Waiting for processes and threads of a test, with the one kind of limit there is (``Patience``)."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vlmpatch_lab.patience import within

LONG = 60.0  # seconds of a machine with nothing else to do; nothing a test waits for takes that long


def completed(
    command: Sequence[str | Path], limit: float = LONG, **options: Any
) -> subprocess.CompletedProcess[str]:
    """What ``command`` said and how it ended, as ``subprocess.run`` tells it.

    Raises:
        TimeoutError: it ran past its limit and was killed.
    """
    words = [str(word) for word in command]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, **options) as process:
        said = communicated(process, limit)
    return subprocess.CompletedProcess(words, process.returncode, *said)


def communicated(process: subprocess.Popen[str], limit: float = LONG) -> tuple[str, str]:
    """What ``process`` writes until its end, to each of its pipes.

    Raises:
        TimeoutError: it ran past its limit and was killed.
    """
    said: list[str] = []

    def ended(seconds: float) -> bool:
        try:
            said[:] = [text or "" for text in process.communicate(timeout=seconds)]
        except subprocess.TimeoutExpired:
            return False
        return True

    if not within(limit, ended):
        process.kill()
        out, err = process.communicate()
        raise TimeoutError(f"{process.args!r} ran past its limit\n{out}{err or ''}")
    return said[0], said[1]


def joined(threads: Iterable[threading.Thread], limit: float = LONG) -> bool:
    """Whether all of them end in time."""
    return all(within(limit, partial(_over, thread)) for thread in threads)


def _over(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return not thread.is_alive()
