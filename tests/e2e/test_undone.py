"""Patches that are taken away in the midst of a training, and come back, leave nothing behind in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab import envs, launch

ENGINES = ["ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3", "an engine made while they are off"]


@pytest.mark.parametrize("name", ["tf457-ds0182", pytest.param("tf523-ds0198", marks=pytest.mark.slow)])
def test_a_training_goes_on_as_without_patches(name: str) -> None:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    bare, patched = (losses(stack, *options) for options in ((), ("--patched",)))
    assert [each["engine"] for each in bare] == ENGINES
    assert patched == bare


def losses(stack: envs.Stack, *options: str) -> list[dict[str, Any]]:
    model = launch.checkpoint(stack, "qwen2_vl")
    command: list[str | Path] = ["python", "-m", "tests.programs.undone", model, *options]
    finished = launch.run(stack, command, limit=300, gloo=True, waiting=True)
    assert finished.rc == 0, str(finished)
    return [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"engine"')]
