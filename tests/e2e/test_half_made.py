"""An object that lacks what a patch asks for is treated as without that patch, whichever patch it is."""

from __future__ import annotations

import json

import pytest

from tests.lab import envs, launch

MODULES = (
    *("deepspeed", "deepspeed.runtime.zero.stage3", "deepspeed.runtime.zero.stage_1_and_2"),
    *("deepspeed.runtime.zero.partitioned_param_coordinator", "accelerate", "peft"),
    *("transformers.trainer", "transformers.modeling_utils", "transformers.generation"),
)


@pytest.mark.parametrize("name", ["tf524-ds0198", pytest.param("tf457-ds0182", marks=pytest.mark.slow)])
def test_no_method_fails_by_what_only_a_patch_asks_for(name: str) -> None:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    command = ["python", "-m", "tests.programs.half_made", *MODULES]
    finished = launch.run(stack, command, limit=300, gloo=True, waiting=True)
    assert finished.rc == 0, str(finished)
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"')]
    assert lines[:-1] == []
    assert lines[-1]["methods"] > 40
    assert lines[-1]["taken"] > 20
