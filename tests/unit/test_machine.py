"""``python -m tests.lab.machine``: what ``make`` asks before it makes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import envs, machine


def test_it_knows_which_stacks_pin_a_torch() -> None:
    stacks = envs.read_stacks()
    usual = stacks["tf457-ds0182"].torch
    pinned = machine.with_cuda()
    assert {"torch241", "torch2150"} <= pinned <= stacks.keys()
    assert {name for name, stack in stacks.items() if stack.torch != usual} <= pinned


def test_what_is_made_takes_no_room(tmp_path: Path) -> None:
    wanted = machine.gigabytes(["tf457-ds0182", "torch241"], str(tmp_path))
    assert wanted == machine.OWN + machine.EACH + machine.CUDA
    made = tmp_path / "tf457-ds0182-0123456789"
    made.mkdir()
    (made / "complete").touch()
    assert machine.gigabytes(["tf457-ds0182", "torch241"], str(tmp_path)) == machine.OWN + machine.CUDA


def test_numactl_is_asked_for_where_deepspeed_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    asks = [
        any(line.endswith("apt-get install -y numactl") for line in machine.missing(stacks, str(tmp_path)))
        for stacks in (["tf457-ds0182"], ["tf457-ds0182", "tf445-ds0154"])
    ]
    assert asks == [False, True]  # the first is the demo's
    assert machine.with_numactl() <= envs.read_stacks().keys()
