"""One thing happens in the middle of another: at each step of ours, a second thread does all of its own.

What runs in threads by chance runs here by number, so that a gap between a look and the deed that rests on
it is entered once for certain. A second thread that has to wait for a lock lets the first go on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import vlmpatch
from tests.lab.waits import joined

OURS = os.path.dirname(os.path.abspath(vlmpatch.__file__))
Work = Callable[[], object]


class Hangs(AssertionError):
    """Two threads wait for each other."""


def steps(first: Work) -> int:
    """How many lines of ours ``first`` runs through."""
    return _run(first, -1, lambda: None)


def in_the_middle(first: Work, second: Work, at: int, patience: float = 0.003) -> None:
    """``second``, begun in a thread of its own before line number ``at`` of ``first``.

    Args:
        first: runs here.
        second: runs to its end in the gap, unless it has to wait for something that ``first`` holds.
        at: a number below ``steps(first)``.
        patience: seconds after which the second thread is taken to wait.
    """
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            second()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=guarded, daemon=True)

    def meanwhile() -> None:
        thread.start()
        thread.join(patience)

    _run(first, at, meanwhile)
    if thread.ident is None:
        return  # this time the first took fewer steps
    if not joined([thread]):
        raise Hangs(f"at line {at}")
    if raised:
        raise raised[0]


def interrupted(work: Work, at: int, kind: type[BaseException]) -> None:
    """``kind`` is raised before line number ``at`` of ``work``; what comes of it is for the caller to see."""

    def fault() -> None:
        raise kind("injected")

    try:
        _run(work, at, fault)
    except kind as raised:
        if "injected" not in str(raised):
            raise


def _run(work: Work, at: int, meanwhile: Work) -> int:
    count = 0

    def watch(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            count += 1
            if count - 1 == at:
                meanwhile()
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def spread(count: int, of: int) -> Iterator[int]:
    """``count`` numbers below ``of``, evenly; all of them when there are no more."""
    yield from sorted({of * number // count for number in range(count)} if count < of else range(of))
