"""Programs of other kinds: output, exit code and warnings are the same with vlmpatch as without.

A patch whose target is a name anybody may use (``trainer``, ``dataset``, a class, a flag) proves itself
here. A program is one text of ``programs/``: what it is, then its files.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import envs, launch

PROGRAMS = {path.stem: path for path in sorted(Path(__file__).with_name("programs").glob("*.txt"))}
NEWEST = "tf523-ds0198"
OTHERS = ("tf445-ds0154", "tf457-ds0182")
WARM = ("torch", "transformers", "transformers.trainer")
Ends = Callable[[str, str], tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture(scope="session")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """For a stack and a program: how it ended bare, and with vlmpatch."""

    @functools.cache
    def of_stack(stack: str) -> Path:
        return perform(stack, tmp_path_factory.mktemp(stack))

    def read(stack: str, program: str) -> tuple[dict[str, Any], dict[str, Any]]:
        folder = of_stack(stack)
        bare, patched = (json.loads((folder / kind / f"{program}.json").read_text()) for kind in KINDS)
        return bare, patched

    return read


KINDS = ("bare", "patched")


def perform(name: str, out: Path) -> Path:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    for kind in KINDS:
        (out / kind).mkdir()
        command: list[str | Path] = ["python", "-W", "ignore", "-m", "tests.innocents.warm"]
        command += ["--patched"] if kind == "patched" else []
        command += ["--out", out / kind, "--import", *WARM, "--", *PROGRAMS.values()]
        finished = launch.run(stack, command, limit=60 + 4 * len(PROGRAMS))
        assert finished.rc == 0, str(finished)
    return out


def check_same(bare: dict[str, Any], patched: dict[str, Any]) -> None:
    for what in ("code", "stdout", "stderr"):
        assert patched[what] == bare[what], patched["stderr"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_different(program: str, ends: Ends) -> None:
    check_same(*ends(NEWEST, program))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("stack", OTHERS)
def test_nothing_is_different_on_older_stacks(stack: str, program: str, ends: Ends) -> None:
    check_same(*ends(stack, program))


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_itself_works(program: str, ends: Ends) -> None:
    """What fails by itself would say nothing about vlmpatch."""
    bare, _ = ends(NEWEST, program)
    text = PROGRAMS[program].read_text().splitlines()
    expected = next((int(line.split()[-1]) for line in text[:3] if line.startswith("It ends with")), 0)
    assert bare["code"] == expected, bare["stderr"]
    assert bare["stdout"], bare
