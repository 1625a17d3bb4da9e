"""What patches do with devices, where there is none: the lab has CPUs."""

from __future__ import annotations

import json

import pytest

from tests.lab import envs, launch


@pytest.mark.parametrize("stack", ["tf523-ds0198", pytest.param("tf445-ds0154", marks=pytest.mark.slow)])
def test_devices_that_are_not_there(stack: str) -> None:
    known = envs.read_stacks()[stack]
    envs.make(known)
    finished = launch.run(known, ["python", "-m", "tests.programs.accelerators"], limit=240)
    assert finished.rc == 0, str(finished)
    assert json.loads(finished.output.splitlines()[-1]) == {
        "random_numbers": [True, {"0": 0, "1": 0}],
        "where_ranks_talk": ["meta", "meta", "cpu"],
        "where_it_computes": ["meta", "cpu"],
        "forwards_over_devices": [["cpu", "cpu", "meta", "meta"]],
        "dropped": [[3], [True, False, False]],
        "errors": [True, True, True, True, True, True, False, False],
    }
