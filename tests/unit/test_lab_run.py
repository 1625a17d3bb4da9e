"""A cell of one rank that hangs is run once more, and no other."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vlmpatch_lab
from vlmpatch_lab import forks
from vlmpatch_lab import run as lab
from vlmpatch_lab.cell import Cell


@pytest.mark.parametrize(
    ("engine", "ends", "runs"),
    [("none", [[-9], [1]], 2), ("none", [[-9], [-9]], 2), ("none", [[1]], 1), ("ddp", [[-9, -9]], 1)],
)
def test_what_hangs_alone_is_run_once_more(
    engine: str, ends: list[list[int]], runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def fork(*arguments: Any, world: int, **more: Any) -> list[int]:
        asked.append(world)
        return ends[len(asked) - 1]

    ranks = SimpleNamespace(main=None)  # the real one imports torch
    monkeypatch.setitem(sys.modules, "vlmpatch_lab.ranks", ranks)
    monkeypatch.setattr(vlmpatch_lab, "ranks", ranks, raising=False)
    monkeypatch.setattr(forks, "run", fork)
    outcomes = lab.run(Cell(engine=engine), "", tmp_path / "cell")
    assert len(asked) == runs
    assert [outcome["ok"] for outcome in outcomes] == [False] * len(ends[-1])
