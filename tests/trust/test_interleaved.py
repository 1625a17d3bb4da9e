"""Two threads, or a fault, at every line of ours: ``tests/unit/test_interleaved.py`` has a part of it."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import World
from tests.unit.test_interleaved import INTERRUPTED, KINDS, SECONDS, Stage, at_every_fault, everywhere

FIRSTS = ("redo", "undo", "undo_and_redo", "told_again", "in_and_out", "import_anew", "fails")


@pytest.mark.slow
@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("first", FIRSTS)
def test_one_at_every_line_of_the_other(first: str, second: str, world: World, warnings: list[str]) -> None:
    everywhere(Stage(world), first, second, sys.maxsize)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", INTERRUPTED)
def test_a_fault_at_every_line(
    first: str, kind: type[BaseException], world: World, warnings: list[str]
) -> None:
    at_every_fault(Stage(world), first, kind, sys.maxsize)
