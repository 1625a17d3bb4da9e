"""A call that one rank tells another, so that it can make the same one."""

from __future__ import annotations

import json

from tests.lab import envs, launch


def test_what_is_told_is_what_was_called() -> None:
    stack = envs.read_stacks()["tf523-ds0198"]
    envs.make(stack)
    finished = launch.run(stack, ["python", "-m", "tests.programs.told_calls"], limit=240)
    assert finished.rc == 0, str(finished)
    found = json.loads(finished.output.splitlines()[-1])
    assert found["calls"] > 0
    assert found["different"] is None
    assert found["refused"] == ["object", "set", "Linear"]
