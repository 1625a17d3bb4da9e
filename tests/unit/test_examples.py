"""What the examples say of vlmpatch and of stacks is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import vlmpatch
from tests.lab import envs
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch.lockfile import lock
from vlmpatch.tools import cli
from vlmpatch.tools.view.language import Words

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DOWNSTREAM = EXAMPLES / "downstream"
PINS = [line for line in (DOWNSTREAM / "requirements.txt").read_text().splitlines() if "==" in line]
WRITTEN = [DOWNSTREAM / ".github/workflows/ci.yml", DOWNSTREAM / ".gitlab-ci.yml"]
TOLD = [*WRITTEN, *EXAMPLES.rglob("*.md"), *EXAMPLES.rglob("requirements.txt")]


def test_the_lock_is_of_the_stack_that_is_pinned() -> None:
    stack = envs.read_stacks()["tf457-ds0182"]
    assert set(PINS) - set(stack.packages) == {"vlmpatch==" + vlmpatch.__version__, "torch==2.13.0"}
    pinned = dict(pin.split("==") for pin in PINS)
    held = lock.read(str(DOWNSTREAM / "vlmpatch.lock"))
    assert {name: pinned[name] for name in held.packages} == held.packages
    assert pinned["vlmpatch"] == held.vlmpatch == vlmpatch.__version__


def test_what_is_required_is_locked() -> None:
    source = (DOWNSTREAM / "tiny_vl" / "train.py").read_text("utf-8")
    (call,) = re.findall(r"^vlmpatch\.require\((.*)\)$", source, re.M)
    ids = re.findall(r'"([\w-]+)"', call)
    assert set(ids) <= lock.read(str(DOWNSTREAM / "vlmpatch.lock")).patches.keys()
    assert set(ids) <= read(default_path()).entries.keys()


@pytest.mark.parametrize("path", TOLD, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_commands_are_those_there_are(path: Path) -> None:
    parser = cli._parser(Words("en"))
    for line in re.findall(r"python -m vlmpatch ([^\n`]*)", path.read_text("utf-8")):
        words = shlex.split(re.split(r" (?:>|&&|\|\||#)|[。;,]", line)[0])
        if words[0] != "run":
            parser.parse_args(words)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_ci_runs_the_tests_and_compares_the_lock(path: Path) -> None:
    jobs: dict[str, Any] = yaml.safe_load(path.read_text())
    jobs = jobs.get("jobs", jobs)
    steps = {name: jobs[name].get("steps") or jobs[name]["script"] for name in ("patches", "test")}
    assert "lock --diff --annotations" in str(steps["patches"])
    assert "python -m unittest" in str(steps["test"])
