"""Signals that end ``verify``: what it has made is taken away first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class Signals:
    """Inside the block a signal that ends a process raises: once, and never while a thing is half made.

    What the process ignores (SIGHUP under ``nohup``) it goes on ignoring.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._came = 0
        self._raised = False
        self._held = 0

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
            for number in numbers:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def owned(self, make: Callable[[], T], end: Callable[[T], None]) -> Iterator[T]:
        """What ``make`` returns; ``end`` gets it however the block is left. No signal comes between."""
        made: list[T] = []
        try:
            with self._holding():
                made.append(make())
            yield made[0]
        finally:
            with self._holding():
                for each in made:
                    end(each)

    @contextlib.contextmanager
    def _holding(self) -> Iterator[None]:
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        self._raise()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = self._came or number
        self._raise()

    def _raise(self) -> None:
        if self._came and not self._raised and not self._held:
            self._raised = True
            raise KeyboardInterrupt if self._came == signal.SIGINT else SystemExit(128 + self._came)
