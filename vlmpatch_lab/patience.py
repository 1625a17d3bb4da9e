"""How long to wait for what may hang, whatever else keeps the machine busy.

A limit is counted in seconds of a machine that has nothing else to do: while more processes want to run than
there are cores, its clock goes slower by as much, and slower still for a process that is nice. So a run that
shares the machine is not taken for one that hangs, and one that hangs is still ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PAUSE = 0.5  # seconds between two looks at the clock
OFTEN = 0.1  # the clock is not read again within so many
LOAD = Path("/proc/loadavg")
NICER = 1.25  # times as much of a core goes to a process than to one that is nicer by one, on Linux


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
    return seconds * slowed(max(wanting(), os.getloadavg()[0]))


def share() -> float:
    """How much of a core this process has when it wants one, at most 1."""
    return 1 / slowed(wanting())


def slowed(beside: float) -> float:
    """How many times longer this process takes beside so many that want a core, none of which is nice."""
    crowd = beside / (os.cpu_count() or 1)
    return crowd * NICER ** niceness() if crowd > 1 else 1.0


def niceness() -> int:
    """Of this process; where a system knows no such thing, 0."""
    return os.nice(0) if hasattr(os, "nice") else 0


def wanting() -> int:
    """How many processes want to run at this moment, without this one."""
    try:
        return int(LOAD.read_text().split()[3].partition("/")[0]) - 1
    except (OSError, IndexError, ValueError):
        return round(os.getloadavg()[0])  # where there is no /proc: their average over a minute
