"""The ZeRO-3 watchers on real ranks: a job that can never go on is ended, every other one is left alone.

What follows from any number of ranks without processes is in ``tests/unit/test_deadlock.py``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest

from tests.lab import envs, launch
from tests.lab.launch import Finished
from vlmpatch_lab.ports import free_port

STACK = "tf457-ds0182"
OTHERS = ("tf445-ds0154", "tf523-ds0198")
HEALTHY = (
    *("breakpoint_on_one_rank", "evaluation_on_one_rank", "long_checkpoint", "two_engines", "saved_late"),
    *("switched_off_on_one_rank", "saved_switched_off_on_one_rank"),
    *("two_groups_of_the_same_ranks", "saved_with_work_outstanding"),
)
STOPPED = ("saved_after_a_stop", "saved_to_a_slow_disk", "saved_where_opening_takes_long")
PATIENT = ("saved_after_a_stop", "long_checkpoint", "saved_with_work_outstanding", "breakpoint_on_one_rank")
Jobs = Callable[..., Finished]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """For a stack and scenarios: how a torchrun job ended that went through them."""

    @functools.cache
    def run(stack: str, *scenarios: str, world: int = 2, restarts: int = 0, real: bool = False) -> Finished:
        found = envs.read_stacks()[stack]
        envs.make(found)
        command = ["torchrun", "--nproc_per_node", str(world), "--max-restarts", str(restarts)]
        command += ["--master-port", str(free_port()), "--monitor-interval", "0.5"]
        env = {"WATCHED_OUT": str(tmp_path_factory.mktemp("saved")), "VLMPATCH_STRICT": "1"}
        command += ["-m", "tests.programs.watched", *scenarios]
        if not real:
            return launch.run(found, command, limit=240, env=env)
        env["WATCHED_PATIENCE"] = "real"
        return launch.run(found, command, limit=240 * len(scenarios), env=env)

    return run


def check_left_alone(job: Finished, scenarios: tuple[str, ...], world: int) -> None:
    assert job.rc == 0, str(job)
    for rank in range(world):
        for scenario in scenarios:
            assert f"[{rank}] {scenario} is over" in job.output, str(job)
        assert f"[{rank}] ends" in job.output, str(job)
    assert "Traceback" not in job.output, str(job)
    assert "can never go on" not in job.output, str(job)


def check_restarted(job: Finished) -> None:
    """The first attempt is ended with the modules' names; the second is not measured by what it has left."""
    assert job.rc == 0, str(job)
    assert "[0] attempt 1" in job.output, str(job)
    assert "[0] ends" in job.output, str(job)
    ended = [line for line in job.output.splitlines() if "can never go on" in line]
    assert ended, str(job)
    assert re.search(
        r"Gather \d+ of this run is layers\.[\w.]+ on rank 0, layers\.[\w.]+ on rank 1", ended[0]
    )
    assert len(ended) <= 2, str(job)  # one a rank, and none in the second attempt


def test_a_late_rank_is_waited_for(jobs: Jobs) -> None:
    check_left_alone(jobs(STACK, *HEALTHY), HEALTHY, world=2)


def test_a_deadlock_ends_and_a_restart_begins_anew(jobs: Jobs) -> None:
    check_restarted(jobs(STACK, "restarted", restarts=1))


def test_a_late_rank_is_warned_of_and_left(jobs: Jobs) -> None:
    said = re.findall(r"vlmpatch \[zero3-save-on-every-rank\]: .*", jobs(STACK, *HEALTHY).output)
    assert any("and not on rank 1 within" in line and "Still waiting." in line for line in said), said


@pytest.mark.slow
def test_a_process_that_is_stopped_is_waited_for(jobs: Jobs) -> None:
    check_left_alone(jobs(STACK, *STOPPED), STOPPED, world=2)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", PATIENT)
def test_two_minutes_are_waited_for(jobs: Jobs, scenario: str) -> None:
    check_left_alone(jobs(STACK, scenario, real=True), (scenario,), world=2)


@pytest.mark.slow
def test_a_rank_that_fails_once_is_restarted(jobs: Jobs) -> None:
    job = jobs(STACK, "failed_once", restarts=1)
    assert job.rc == 0, str(job)
    assert "[0] attempt 1" in job.output, str(job)
    assert "[0] ends" in job.output, str(job)
    assert "can never go on" not in job.output, str(job)


@pytest.mark.slow
def test_parts_of_the_world_save_when_they_like(jobs: Jobs) -> None:
    check_left_alone(jobs(STACK, "saved_by_parts", world=4), ("saved_by_parts",), world=4)


@pytest.mark.slow
def test_engines_of_parts_of_the_world(jobs: Jobs) -> None:
    check_left_alone(jobs(STACK, "two_engines", world=4), ("two_engines",), world=4)


@pytest.mark.slow
@pytest.mark.parametrize("stack", OTHERS)
def test_the_same_on_other_stacks(stack: str, jobs: Jobs) -> None:
    check_left_alone(jobs(stack, *HEALTHY), HEALTHY, world=2)
    check_restarted(jobs(stack, "restarted", restarts=1))
