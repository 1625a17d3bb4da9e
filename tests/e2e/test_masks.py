"""The masks that code in a model's folder is given where transformers has removed its own."""

from __future__ import annotations

import json

from tests.lab import envs, launch

LAST = "tf523-ds0198"  # the last release that has the module


def test_they_are_those_of_the_module() -> None:
    stack = envs.read_stacks()[LAST]
    envs.make(stack)
    finished = launch.run(stack, ["python", "-m", "tests.programs.masks"], limit=240)
    assert finished.rc == 0, str(finished)
    found = json.loads(finished.output.splitlines()[-1])
    assert found["calls"] > found["errors"] > 0
    assert found["different"] == []
