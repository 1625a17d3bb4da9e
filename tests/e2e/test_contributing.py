"""What CONTRIBUTING.md asks to be run on a stack: the bug before there is a patch, and the proof after."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import envs
from tests.unit.test_contributing import ID, commands, fill_in, run, taken_out

STACK = "tf457-ds0182"


@pytest.mark.slow
def test_the_bug_is_seen_and_the_patch_is_proven(tmp_path: Path) -> None:
    envs.make(envs.read_stacks()[STACK])
    copy = taken_out(tmp_path)
    make, see = commands(1)
    assert make == f"make stack NAME={STACK}"
    bare, patched = (line for line in run(see, copy) if "zero3" in line)
    assert "ds_grads_remaining" in bare
    assert "ds_grads_remaining" in patched

    run(commands(2)[0], copy)
    fill_in(copy)
    (prove,) = commands(4)
    proven, with_all, without = run(prove, copy)
    assert proven == f"ok    {STACK}:{ID} ({ID})"
    assert with_all.endswith("right")
    assert "ds_grads_remaining" in without
