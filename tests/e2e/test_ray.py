"""Ray's workers are started by its own daemon: each way for vlmpatch to come into them."""

from __future__ import annotations

import tempfile

import pytest

from tests.lab import envs, launch

RUN = ("python", "-m", "vlmpatch", "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "before", "right"),
    [
        ("bare", (), False),  # no error: the gradients are those of one pass through the block
        ("bare", RUN, True),
        ("import", (), True),
        ("hook", (), True),
        ("variables", (), True),
    ],
)
def test_two_actors_train(way: str, before: tuple[str, ...], right: bool) -> None:
    stack = envs.read_stacks()["neighbours"]
    envs.make(stack)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path must be short
        command = [*before, "python", "-W", "ignore", "tests/programs/ray_job.py", way, folder]
        done = launch.run(stack, command, limit=120, env={"RAY_USAGE_STATS_ENABLED": "0"})
    assert done.rc == 0, str(done)
    apart = [float(line.split()[-1]) for line in done.output.splitlines() if line.startswith("rank: ")]
    assert len(apart) == 2, str(done)
    assert all(value == 0 if right else value > 0.1 for value in apart), str(done)
