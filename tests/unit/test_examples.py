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
from tests.matrix import drift
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Entry
from vlmpatch.catalog.read import read
from vlmpatch.gate import versions
from vlmpatch.lockfile import lock
from vlmpatch.lockfile.recorded import Installed
from vlmpatch.tools import cli
from vlmpatch.tools.view.language import Words

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DOWNSTREAM = EXAMPLES / "downstream"
PINS = [line for line in (DOWNSTREAM / "requirements.txt").read_text().splitlines() if "==" in line]
WRITTEN = [DOWNSTREAM / ".github/workflows/ci.yml", DOWNSTREAM / ".gitlab-ci.yml"]
TOLD = [*WRITTEN, *EXAMPLES.rglob("*.md"), *EXAMPLES.rglob("requirements.txt")]


STACK = "tf457-ds0182"


def test_the_lock_is_of_the_stack_that_is_pinned() -> None:
    stack = envs.read_stacks()[STACK]
    assert set(PINS) - set(stack.packages) == {"vlmpatch==" + vlmpatch.__version__, "torch==2.13.0"}
    pinned = dict(pin.split("==") for pin in PINS)
    held = lock.read(str(DOWNSTREAM / "vlmpatch.lock"))
    assert {name: pinned[name] for name in held.packages} == held.packages
    assert pinned["vlmpatch"] == held.vlmpatch == vlmpatch.__version__


def test_the_lock_is_of_the_patches_as_they_are() -> None:
    """As far as it can be told without the stack, whose code ``data/shapes`` has seen."""
    catalog, pinned = read(default_path()), dict(pin.split("==") for pin in PINS)
    seen = drift.read(drift.SHAPES / f"{STACK}.csv")["patches"]

    def acts(entry: Entry) -> bool:
        looks = [look["says"] for look in seen[entry.id]["targets"].values()] if entry.id in seen else [""]
        return set(looks) != {"no bug"} and all(
            name in pinned and versions.satisfies(pinned[name], specifier)
            for name, specifier in entry.requires.items()
        )

    patches = Installed(catalog.patches)
    now = {entry.id: patches.of(entry.module) for entry in catalog.entries.values() if acts(entry)}
    held = {each.id: each.revision for each in lock.read(str(DOWNSTREAM / "vlmpatch.lock")).patches.values()}
    assert held == now, "python -m tests.lab.downstream writes it anew"


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
