"""What was trained and dropped is freed: nothing that a patch remembers keeps it."""

from __future__ import annotations

import json

from tests.lab import envs, launch


def test_a_model_that_a_script_drops_is_freed() -> None:
    stack = envs.read_stacks()["tf457-ds0182"]
    envs.make(stack)
    model = launch.checkpoint(stack, "qwen2_vl")
    finished = launch.run(
        stack, ["python", "-m", "tests.programs.freed", model], limit=300, gloo=True, waiting=True
    )
    assert finished.rc == 0, str(finished)
    found = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"engine"')]
    assert found == [
        {"engine": name, "kept": False}
        for name in ("ddp", "fsdp1", "fsdp2", "zero2", "zero.Init without an engine")
    ], finished.output[-3000:]
