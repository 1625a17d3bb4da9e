"""Programs of other kinds: output, exit code and warnings are the same with vlmpatch as without.

A patch whose target is a name anybody may use (``trainer``, ``dataset``, a class, a flag) proves itself
here. A program is one text of ``programs/``: what it is, then its files. Those of ``neighbours/`` and
``swift/`` need what only some stacks have.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.innocents.texts import NEWEST, OTHERS, OWN, PROGRAMS, WARM
from tests.lab import envs, launch

Ends = Callable[[str, str], tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture(scope="session")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """For a stack and a program: how it ended bare, and with vlmpatch."""

    @functools.cache
    def of_stack(stack: str) -> Path:
        return perform(stack, tmp_path_factory.mktemp(stack))

    return lambda stack, program: both(of_stack(stack), program)


KINDS = ("bare", "patched")
SAME = ("code", "stdout", "stderr")
# Where an object lies; when DeepSpeed was imported; the name of a temporary folder that ms-swift leaves to
# the end of the process.
CHANCE = re.compile(r"\bat 0x[0-9a-f]+\b|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\]|\btmp[a-z0-9_]{8}\b")


def perform(name: str, out: Path) -> Path:
    stack = envs.read_stacks()[name]
    programs, warm = OWN.get(name, (PROGRAMS, WARM))
    envs.make(stack)
    for kind in KINDS:
        (out / kind).mkdir()
        command: list[str | Path] = ["python", "-W", "ignore", "-m", "tests.innocents.warm"]
        command += ["--patched"] if kind == "patched" else []
        command += ["--out", out / kind, "--import", *warm, "--", *programs.values()]
        # On a CPU, as they are: compilers and function transforms keep by thread what they do, and only
        # torch's own threads are told of it.
        finished = launch.run(stack, command, limit=60 + 6 * len(programs), env={launch.BACKWARD: ""})
        assert finished.rc == 0, str(finished)
    return out


def both(folder: Path, program: str) -> tuple[dict[str, Any], dict[str, Any]]:
    bare, patched = (
        json.loads(CHANCE.sub("[by chance]", (folder / kind / f"{program}.json").read_text()))
        for kind in KINDS
    )
    return bare, patched


def different(folder: Path, program: str) -> str:
    """What of ``program`` was not the same, in words."""
    bare, patched = both(folder, program)
    return ", ".join(what for what in SAME if patched[what] != bare[what])


def check_same(bare: dict[str, Any], patched: dict[str, Any]) -> None:
    for what in SAME:
        assert patched[what] == bare[what], patched["stderr"]
    assert not patched["failed"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_different(program: str, ends: Ends) -> None:
    check_same(*ends(NEWEST, program))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("stack", OTHERS)
def test_nothing_is_different_on_older_stacks(stack: str, program: str, ends: Ends) -> None:
    check_same(*ends(stack, program))


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "program"), [(stack, each) for stack in OWN for each in OWN[stack][0]])
def test_nothing_is_different_beside_neighbours(stack: str, program: str, ends: Ends) -> None:
    bare, patched = ends(stack, program)
    check_same(bare, patched)
    check_works(OWN[stack][0][program], bare)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_itself_works(program: str, ends: Ends) -> None:
    """What fails by itself would say nothing about vlmpatch."""
    bare, _ = ends(NEWEST, program)
    check_works(PROGRAMS[program], bare)


def check_works(program: Path, bare: dict[str, Any]) -> None:
    text = program.read_text().splitlines()
    expected = next((int(line.split()[-1]) for line in text[:3] if line.startswith("It ends with")), 0)
    assert bare["code"] == expected, bare["stderr"]
    assert bare["stdout"], bare
