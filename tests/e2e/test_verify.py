"""``python -m vlmpatch verify`` with real trainings, and what it leaves behind: nothing."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.lab import envs, launch
from tests.lab.launch import Finished

STACK = "tf457-ds0182"
SHM = Path("/dev/shm")
VERIFY = "python -m vlmpatch verify --only zero3-delegating-modules --device cpu"
OTHERS = ("torch241", "torch2150", "tf523-ds0198", "torch212")


def verify(
    stack: str, tmp_path: Path, *words: str, command: tuple[str, ...] = (), **environ: str
) -> Finished:
    made = envs.read_stacks()[stack]
    envs.make(made)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = {path.name for path in SHM.iterdir()}
    started = command or ("python", "-m", "vlmpatch", "verify", *words)
    finished = launch.run(made, started, limit=400, env={"TMPDIR": str(scratch), "LANG": "C", **environ})
    assert not finished.left, str(finished)
    assert not list(scratch.iterdir()), f"left: {list(scratch.iterdir())}"
    ours = [path for path in SHM.iterdir() if path.name not in before and "deepspeed" in path.name]
    assert not ours, f"left in shared memory: {ours}"
    return finished


def test_a_patch_is_tried_bare_and_patched(tmp_path: Path) -> None:
    finished = verify(STACK, tmp_path, "--only", "zero3-delegating-modules", "--device", "cpu")
    assert finished.rc == 0, str(finished)
    assert "has no" in finished.output
    assert "ds_grads_remaining" in finished.output
    assert "gradients are right" in finished.output
    assert "1 of 1 runs are as they should be" in finished.output


def test_a_patch_that_is_off_does_not_pass(tmp_path: Path) -> None:
    patch = "zero3-delegating-modules"
    finished = verify(STACK, tmp_path, "--only", patch, VLMPATCH_DISABLE=patch)
    assert finished.rc == 1, str(finished)
    assert re.search(rf"^NO +{patch}$", finished.output, re.M)
    assert "0 of 1 runs" in finished.output


@pytest.mark.slow
def test_sigterm_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """``verify`` here finds whatever is left, process or file."""
    script = f"{VERIFY} & until ls $TMPDIR/*/bare/*/rank0.log; do sleep 0.1; done; kill $!; wait $!"
    finished = verify(STACK, tmp_path, command=("sh", "-c", script))
    assert finished.rc == 128 + signal.SIGTERM, str(finished)


@pytest.mark.slow
def test_a_disk_that_runs_full(tmp_path: Path) -> None:
    """A file system of 14 MiB; something else takes what is left of it while the runs are on."""
    small = tmp_path / "small"
    small.mkdir()
    script = (
        f"mount -t tmpfs -o size=14m small {small}; export TMPDIR={small}; {VERIFY} & "
        f"until ls {small}/*/bare/*/rank0.log; do sleep 0.1; done; cat /dev/zero > {small}/fill; wait $!"
    )
    command = ("unshare", "--map-root-user", "--mount", "sh", "-c", script)
    finished = verify(STACK, tmp_path, command=command)
    assert finished.rc == 3, str(finished)
    assert f"{small} is full: 0 MiB are left" in finished.output


@pytest.mark.slow
@pytest.mark.parametrize("stack", [STACK, *OTHERS])
def test_every_patch_that_applies(stack: str, tmp_path: Path) -> None:
    finished = verify(stack, tmp_path)
    assert finished.rc == 0, str(finished)
    assert not re.search(r"^NO ", finished.output, re.M)
