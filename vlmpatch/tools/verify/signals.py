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
    """Inside the block a signal that ends a process is only noted; ``obey`` raises for it.

    A handler that raises wherever it happens to run can cut a thing off half made, and one that runs in a
    finaliser is not heard at all: Python prints what a ``__del__`` raises and goes on.

    What the process ignores (SIGHUP under ``nohup``) it goes on ignoring.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._came = 0

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
        """What ``make`` returns; ``end`` gets it however the block is left."""
        made = make()
        try:
            self.obey()
            yield made
        finally:
            end(made)
        self.obey()

    def obey(self) -> None:
        """To be called wherever the work can stop, and at least twice a second.

        Raises:
            KeyboardInterrupt: SIGINT came.
            SystemExit: another signal came; the code is 128 and its number, as a shell gives it.
        """
        if self._came:
            raise KeyboardInterrupt if self._came == signal.SIGINT else SystemExit(128 + self._came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = self._came or number
