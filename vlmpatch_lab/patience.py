"""How long to wait for what may hang, whatever else keeps the machine busy.

A limit is counted in seconds of a machine that has nothing else to do: while more processes want to run than
there are cores, its clock goes slower by as much. So a run that shares the machine is not taken for one that
hangs, and one that hangs is still ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PAUSE = 0.5  # seconds between two looks at the clock
OFTEN = 0.1  # the clock is not read again within so many
LOAD = Path("/proc/loadavg")


class Patience:
    """``seconds`` of a machine with nothing else to do, from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.spent = seconds, 0.0
        self._at = time.monotonic()

    def over(self) -> bool:
        """Whether they have passed; to be asked again and again, for the load is taken at each look."""
        now = time.monotonic()
        if now - self._at >= OFTEN:
            self.spent += (now - self._at) * share()
            self._at = now
        return self.spent > self.seconds


def within(seconds: float, done: Callable[[float], bool]) -> bool:
    """Whether ``done`` says so in time.

    Args:
        seconds: of a machine with nothing else to do.
        done: waits for at most as many seconds as it is told and says whether it is done, as
            ``threading.Event.wait`` does.
    """
    patience = Patience(seconds)
    while not done(PAUSE):
        if patience.over():
            return False
    return True


def stretched(seconds: float) -> float:
    """What ``seconds`` become at the load of now, for what takes one number and asks no clock of ours."""
    return seconds * max(1.0, max(wanting(), os.getloadavg()[0]) / (os.cpu_count() or 1))


def share() -> float:
    """How much of a core each process that wants one has, at most 1."""
    return min(1.0, (os.cpu_count() or 1) / max(1, wanting()))


def wanting() -> int:
    """How many processes want to run at this moment, without this one."""
    try:
        return int(LOAD.read_text().split()[3].partition("/")[0]) - 1
    except (OSError, IndexError, ValueError):
        return round(os.getloadavg()[0])  # where there is no /proc: their average over a minute
