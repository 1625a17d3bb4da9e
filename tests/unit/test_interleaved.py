"""Nothing slips between a look and the deed that rests on it: see ``tests.trust.interleaved``."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import PATCH, World
from tests.lab.waits import LONG
from tests.trust.interleaved import Work, in_the_middle, interrupted, spread, steps
from vlmpatch.catalog.model import State
from vlmpatch.engine.engine import Engine
from vlmpatch_lab.patience import within

FEW = 25
FAILS_WHEN_TOLD = PATCH + (
    """
    if module.failing:
        module.failing.pop()
        raise RuntimeError("told to")
"""
)


class Stage:
    """One patched package, and what can be done to it."""

    def __init__(self, world: World) -> None:
        world.distribution("fakelib", "1")
        source = 'failing = []\ndef greet(who):\n    return "hello " + who\n'
        self.package = world.package("staged", source)
        self.id = world.patch("staged", '{ fakelib = ">=1" }', FAILS_WHEN_TOLD)
        self.engine: Engine = world.engine()
        self.module: Any = importlib.import_module("staged")
        self.plain = vars(self.module)["greet"].__wrapped__
        self.first_is_over = threading.Event()
        self.inside: list[Any] = []

    def undo(self) -> None:
        self.engine.undo([self.id])

    def redo(self) -> None:
        self.engine.redo([self.id])

    def undo_and_redo(self) -> None:
        self.undo()
        self.redo()

    def told_again(self) -> None:
        self.engine.hooks.executed("staged")

    def fails(self) -> None:
        self.module.failing.append(True)
        self.told_again()

    def import_anew(self) -> None:
        sys.modules.pop("staged", None)
        self.module = importlib.import_module("staged")
        self.plain = self.module.greet
        while hasattr(self.plain, "__wrapped__"):
            self.plain = self.plain.__wrapped__

    def in_and_out(self) -> None:
        with self.engine.disabled([self.id]):
            pass

    def goes_in(self) -> None:
        block = self.engine.disabled([self.id])
        block.__enter__()
        self.inside.append(block)

    def disabled_meanwhile(self) -> None:
        with self.engine.disabled([self.id]):
            assert self._says() == "hello you"
            within(LONG, self.first_is_over.wait)
            assert self._says() == "hello you"

    def _says(self) -> str:
        return str(self.module.greet("you"))

    def status_is_true(self) -> None:
        """What status says is what happens, and it can all be taken back."""
        state = self.engine.status()[self.id].state
        assert (state, self._says()) in [
            (State.APPLIED, "goodbye you"),
            (State.OFF, "hello you"),
            (State.FAILED, "hello you"),
        ]
        if state is State.APPLIED:
            assert self.engine._handles[self.id].active
        self.all_comes_back()

    def all_comes_back(self) -> None:
        """Whatever has happened: after an undo nothing is left, after a redo it acts."""
        while self.inside:
            self.inside.pop().__exit__(None, None, None)
        self.undo()
        assert self.module.greet is self.plain
        self.module.failing.clear()
        self.redo()
        assert (self.engine.status()[self.id].state, self._says()) == (State.APPLIED, "goodbye you")


@pytest.fixture
def stage(world: World, warnings: list[str]) -> Stage:
    return Stage(world)


SECONDS = ("undo", "redo", "undo_and_redo", "in_and_out", "told_again", "disabled_meanwhile")


def everywhere(stage: Stage, first: str, second: str, count: int) -> None:
    def prepare() -> Work:
        stage.first_is_over.clear()
        if first == "redo":
            stage.undo()
        work: Callable[[], object] = getattr(stage, first)

        def whole() -> None:
            try:
                work()
            finally:
                stage.first_is_over.set()

        return whole

    number = steps(prepare())
    stage.redo()
    for at in spread(count, number):
        try:
            in_the_middle(prepare(), getattr(stage, second), at)
            stage.status_is_true()
        except AssertionError as error:
            raise AssertionError(f"{second} at line {at} of {number} of {first}: {error}") from error


@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("first", ["redo", "fails", "import_anew"])
def test_one_in_the_middle_of_the_other(stage: Stage, first: str, second: str) -> None:
    everywhere(stage, first, second, FEW)


INTERRUPTED = ("redo", "undo", "told_again", "goes_in")
KINDS = (RuntimeError, KeyboardInterrupt, SystemExit)


def at_every_fault(stage: Stage, first: str, kind: type[BaseException], count: int) -> None:
    work: Callable[[], object] = getattr(stage, first)
    number = steps(work)
    for at in spread(count, number):
        (stage.undo if first == "redo" else stage.redo)()
        interrupted(work, at, kind)
        try:
            stage.all_comes_back()
        except AssertionError as error:
            raise AssertionError(f"{kind.__name__} at line {at} of {number} of {first}: {error}") from error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", INTERRUPTED)
def test_a_fault_in_the_middle(stage: Stage, first: str, kind: type[BaseException]) -> None:
    at_every_fault(stage, first, kind, 2 * FEW)


def writes(stage: Stage, kind: str) -> Work:
    """What a wrapper does in the midst of a run, with the handle it has kept."""
    patch, target = stage.engine._handles[stage.id], Target
    return {
        "wrap": lambda: patch.wrap(target, "method", lambda f, *args, **kw: f(*args, **kw)),
        "replace": lambda: patch.replace(target, "value", 2),
        "set_item": lambda: patch.set_item(target.registry, "key", 2),
        "set_default": lambda: patch.set_default(target.method, "x", 2),
        "hook": lambda: patch.hook(Registry.register, stage.status_is_true),
    }[kind]


class Target:
    value = 1
    registry = {"key": 1}  # noqa: RUF012  (what is looked at afterwards)

    def method(self, x: int = 1) -> int:
        return x


class Registry:
    held: list[object] = []  # noqa: RUF012

    @classmethod
    def register(cls, function: object) -> Registry:
        cls.held.append(function)
        return cls()

    def remove(self) -> None:
        self.held.pop()


@pytest.mark.parametrize("kind", ["wrap", "replace", "set_item", "set_default", "hook"])
def test_nothing_is_written_behind_the_back_of_an_undo(stage: Stage, kind: str) -> None:
    method, found = Target.method, []
    number = steps(writes(stage, kind))
    stage.undo_and_redo()
    for at in range(number):
        in_the_middle(writes(stage, kind), stage.undo, at)
        untouched = (Target.method, Target.method.__defaults__, Target.value, Target.registry, Registry.held)
        if untouched != (method, (1,), 1, {"key": 1}, []):
            found.append(at)
        stage.redo()
    assert found == []


def test_a_swap_does_not_begin_after_an_undo(stage: Stage) -> None:
    seen: list[int] = []

    def swap() -> None:
        patch = stage.engine._handles[stage.id]
        with patch.swapped(Target, "value", 2):
            over = not patch.active
            seen.append(Target.value if over else 1)

    for at in range(steps(swap)):
        in_the_middle(swap, stage.undo, at)
        assert (Target.value, set(seen)) == (1, {1}), at
        stage.redo()
