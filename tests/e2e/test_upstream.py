"""What is ready to be reported: it happens in the newest releases, and the change ends it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lab import envs, launch
from tests.lab.envs import Stack
from tests.lab.launch import Finished
from tests.lab.upstream import UPSTREAM, cases, overlaid, stack_of

pytestmark = pytest.mark.slow


def made(case: str) -> Stack:
    found = envs.read_stacks()[stack_of(case)]
    envs.make(found)
    return found


def reproduced(stack: Stack, case: str, *before: str, path: str = "", checkout: bool = False) -> Finished:
    env = {"PYTHONPATH": f"{path}{os.pathsep}{launch.STARTUP}"} if path else {}
    words: list[str | Path] = [*before, "python", UPSTREAM / case / "reproduce.py"]
    return launch.run(stack, words, limit=300, env=env, checkout=checkout)


@pytest.mark.parametrize("case", cases())
def test_it_happens_and_the_change_ends_it(case: str, tmp_path: Path) -> None:
    stack = made(case)
    bare = reproduced(stack, case)
    assert (bare.rc, "Traceback" in bare.output) == (1, False), bare
    last = bare.output.strip().splitlines()[-1]
    assert last in (UPSTREAM / case / "report.md").read_text("utf-8"), last
    changed = reproduced(stack, case, path=str(overlaid(case, stack, tmp_path)))
    assert changed.rc == 0, changed
    patched = reproduced(stack, case, "python", "-m", "vlmpatch", "run", checkout=True)
    assert patched.rc == 0, patched
