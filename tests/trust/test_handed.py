"""Every patch on every stack of the catalog: a wrapper takes all calls, and lies under all names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab import envs, launch

STACKS = envs.read_stacks()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == envs.NEWEST else pytest.mark.slow) for name in STACKS]
)
def test_calls_by_position_and_by_name_reach_what_is_wrapped(name: str, tmp_path: Path) -> None:
    envs.make(STACKS[name])
    (tmp_path / "modules").mkdir()
    command: list[str | Path] = ["python", "-W", "ignore", "-m", "tests.trust.handed", tmp_path / "modules"]
    done = launch.run(STACKS[name], command, limit=300)
    assert done.rc == 0, str(done)
    report = json.loads(next(line for line in done.output.splitlines() if line.startswith('{"wrappers"')))
    assert report["found"] == []
    assert report["wrappers"] >= 5
    # The rest do something with any call, or ask a mock what no mock knows.
    assert report["handed"] >= report["wrappers"] // 2
