"""Ranks that hang are ended, and say where they were."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from vlmpatch_lab import forks


def test_what_hangs_says_where(tmp_path: Path) -> None:
    codes = forks.run(_waits_for_ever, tmp_path, world=2, port=0, limit=1.0)
    assert codes == [-signal.SIGKILL] * 2
    for rank in range(2):
        said = (tmp_path / str(rank)).read_text()
        assert "_waits_for_ever" in said, said
        assert "_another_thread" in said, said


def test_what_ends_says_nothing(tmp_path: Path) -> None:
    assert forks.run(_ends, tmp_path, world=2, port=0, limit=60.0) == [0, 3]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["", ""]


def _waits_for_ever(folder: Path, rank: int, port: int) -> None:
    _write_to(folder / str(rank))
    threading.Thread(target=_another_thread, daemon=True).start()
    threading.Event().wait()


def _another_thread() -> None:
    threading.Event().wait()


def _ends(folder: Path, rank: int, port: int) -> None:
    _write_to(folder / str(rank))
    raise SystemExit(3 * rank)


def _write_to(path: Path) -> None:
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), 2)
