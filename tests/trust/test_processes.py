"""Processes that begin with vlmpatch in them, or begin anew, or are killed: nobody else notices."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import World
from tests.lab import envs, launch
from tests.lab.waits import LONG
from tests.trust import processes
from vlmpatch.engine.engine import Engine
from vlmpatch_lab.patience import within

WAYS = ("fork", "spawn", "forkserver")
KILLS = 12


@pytest.fixture
def parent(world: World) -> Iterator[Callable[[], Engine]]:
    """A process with a patch in it that works."""
    world.package("greets")
    world.distribution("fakelib", "1")
    world.patch("greets", '{ fakelib = ">=1" }')

    def begin() -> Engine:
        engine = world.engine()
        processes.born[:] = [engine]
        assert processes.greeting("greets") == "goodbye you"
        return engine

    yield begin
    processes.born.clear()


def started(way: str, target: Callable[..., None], world: World) -> tuple[Any, Any]:
    """A worker, and what it answers."""
    context: Any = multiprocessing.get_context(way)
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=("greets", str(world.folder), theirs))
    process.start()
    theirs.close()
    return process, mine


def check_untouched(engine: Engine) -> None:
    assert processes.greeting("greets") == "goodbye you"
    assert [status.state.value for status in engine.status().values()] == ["applied"]
    engine.undo([])
    assert processes.greeting("greets") == "hello you"
    engine.redo([])
    assert processes.greeting("greets") == "goodbye you"


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_has_the_patch_and_may_undo_it(way: str, world: World, parent: Callable[[], Engine]) -> None:
    engine = parent()
    process, answer = started(way, processes.look, world)
    assert within(LONG, answer.poll)
    # Forked, the worker was born with the patch; else it waits there for its first import.
    assert answer.recv() == ["goodbye you", "applied" if way == "fork" else "armed", "hello you"]
    process.join()
    assert process.exitcode == 0
    check_untouched(engine)


@pytest.mark.slow
def test_workers_of_a_data_loader_have_the_patches() -> None:
    stack = envs.read_stacks()["tf457-ds0182"]
    envs.make(stack)
    done = launch.run(stack, ["python", "-W", "ignore", "-m", "tests.trust.loading"], limit=300)
    assert done.rc == 0, str(done)
    lines = [line for line in done.output.splitlines() if line.startswith(WAYS)]
    assert lines == [", ".join([way, *["applied True"] * 4]) for way in WAYS], str(done)


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_killed_at_any_moment_leaves_nothing(
    way: str, world: World, parent: Callable[[], Engine]
) -> None:
    engine = parent()
    before = {path for path in world.folder.rglob("*") if "__pycache__" not in path.parts}
    chance = random.Random(way)
    for _ in range(KILLS if way == "fork" else 3):
        process, answer = started(way, processes.churn, world)
        assert within(LONG, answer.poll)
        time.sleep(chance.random() / 20)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert {path for path in world.folder.rglob("*") if "__pycache__" not in path.parts} == before
    check_untouched(engine)
