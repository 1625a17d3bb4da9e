"""The tests of the packages that are patched, and of others beside them: with vlmpatch each ends as without.

    python -m tests.innocents.suites STACK FOLDER [--out DIR] [--beside DIR] [-- PYTEST'S ARGUMENTS ...]

runs in FOLDER, an unpacked source of the release that the stack has, pytest twice at once: bare, and with
every process importing vlmpatch first. A test that ends differently is run twice more each way, alone: what
differs by chance is told apart. ``--beside`` names a folder of packages that the tests need and the stack
lacks. The exit status is 1 where a test ended differently each time, or a patch failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.lab import envs, launch

KINDS = ("bare", "patched")
NOT_PASSED = ("failure", "error", "skipped")
# Every process of the patched run, the children that tests start among them, and what failed in it.
FIRST = """
import atexit, json, os, pathlib
import vlmpatch

def _write_failed():
    failed = [id_ for id_, status in vlmpatch.status().items() if status.state == "failed"]
    if failed:
        pathlib.Path({folder!r}, str(os.getpid())).write_text(json.dumps(failed))

atexit.register(_write_failed)
"""


class Ended(NamedTuple):
    """How a test ended, and the first line of what it said."""

    outcome: str
    says: str


class Suite(NamedTuple):
    """Where the tests lie, what runs them, and where all that they leave goes."""

    python: Path
    folder: Path
    out: Path
    beside: Path | None = None

    def compare(self, arguments: Sequence[str], name: str) -> dict[str, dict[str, Ended]]:
        """The outcome of every test by its name, for both kinds, which run at the same time."""
        started = {kind: self._start(kind, arguments, self.out / f"{name}-{kind}") for kind in KINDS}
        for process in started.values():
            process.wait()
        return {kind: read(self.out / f"{name}-{kind}.xml") for kind in KINDS}

    def failed(self) -> list[str]:
        """The patches that failed in any process."""
        files = (self.out / "failed").glob("*")
        return sorted({each for file in files for each in json.loads(file.read_text())})

    def _start(self, kind: str, arguments: Sequence[str], stem: Path) -> subprocess.Popen[bytes]:
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "-o", "junit_family=xunit1"]
        words += [f"--junitxml={stem}.xml", f"--basetemp={stem}-tmp", *arguments]
        with Path(f"{stem}.log").open("wb") as log:
            return subprocess.Popen(
                [self.python, *words],
                cwd=self.folder,
                env=self._environment(kind),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _environment(self, kind: str) -> dict[str, str]:
        """As a user has it: nothing of the lab, whose ways on a CPU a suite may test."""
        kept = {k: v for k, v in os.environ.items() if k not in launch.DROPPED and "VLMPATCH" not in k}
        home = self.out / f"home-{kind}"
        home.mkdir(exist_ok=True)
        first = [self._importing()] if kind == "patched" else []
        path = [*first, *([self.beside] if self.beside else [])]
        return {
            **kept,
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "HOME": str(home),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }

    def _importing(self) -> Path:
        """A folder whose presence on ``PYTHONPATH`` imports vlmpatch, and that holds nothing else of ours."""
        folder = self.out / "importing"
        (self.out / "failed").mkdir(exist_ok=True)
        if not folder.exists():
            folder.mkdir()
            for part in ("vlmpatch", "patches", "compat.toml"):
                (folder / part).symlink_to(launch.ROOT / part)
            (folder / "sitecustomize.py").write_text(FIRST.format(folder=str(self.out / "failed")))
        return folder


def read(xml: Path) -> dict[str, Ended]:
    """The tests of a run by name; empty where it wrote nothing."""
    if not xml.exists():
        return {}
    found = {}
    for case in ElementTree.parse(xml).iter("testcase"):
        told = next((child for child in case if child.tag in NOT_PASSED), None)
        says = "" if told is None else (told.get("message") or "").partition("\n")[0]
        found[name_of(case)] = Ended("passed" if told is None else told.tag, says)
    return found


def name_of(case: ElementTree.Element) -> str:
    """What pytest takes as an argument for this test alone."""
    file = case.get("file") or ""
    module = file.removesuffix(".py").replace("/", ".")
    classes = (case.get("classname") or "").removeprefix(module).strip(".")
    return "::".join([file, *filter(None, classes.split(".")), case.get("name") or ""])


def differing(ends: dict[str, dict[str, Ended]]) -> list[str]:
    """Tests of the first kind that the second ended differently, or not at all."""
    bare, patched = (ends[kind] for kind in KINDS)
    gone = Ended("absent", "")
    every = sorted(bare.keys() | patched.keys())
    return [each for each in every if bare.get(each, gone).outcome != patched.get(each, gone).outcome]


def harmed(suite: Suite, names: Sequence[str]) -> dict[str, dict[str, Ended]]:
    """Those of ``names`` that end differently again, alone, twice; how they ended."""
    found = {}
    for number, name in enumerate(names):
        print(f"again, alone: {name}", flush=True)
        tries = [suite.compare([name], f"again{number}-{each}") for each in range(2)]
        if all(differing(each) for each in tries):
            found[name] = {kind: tries[-1][kind].get(name, Ended("absent", "")) for kind in KINDS}
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.innocents.suites")
    parser.add_argument("stack")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="what the runs leave; a folder that is removed otherwise")
    parser.add_argument("--beside", type=Path)
    own, rest = split(arguments)
    asked = parser.parse_args(own)
    stack = envs.read_stacks()[asked.stack]
    envs.make(stack)
    with tempfile.TemporaryDirectory() as temporary:
        out = (asked.out or Path(temporary)).absolute()
        out.mkdir(parents=True, exist_ok=True)
        beside = asked.beside.absolute() if asked.beside else None
        return report(Suite(stack.python, asked.folder.absolute(), out, beside), rest)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What comes before ``--``, and after it."""
    end = [*arguments, "--"].index("--")
    return [*arguments[:end]], [*arguments[end + 1 :]]


def report(suite: Suite, arguments: Sequence[str]) -> int:
    ends = suite.compare(arguments, "all")
    for kind in KINDS:
        print(f"{kind:8}", dict(Counter(each.outcome for each in ends[kind].values())), flush=True)
    once = differing(ends)
    for name in once:
        print(f"ended differently: {name}: {[ends[kind].get(name) for kind in KINDS]}", flush=True)
    found, failed = harmed(suite, once), suite.failed()
    for name, how in found.items():
        print(f"HARMED {name}\n  bare: {how['bare']}\n  patched: {how['patched']}")
    print(f"{len(once)} differed once, {len(found)} each time; patches that failed: {failed or 'none'}")
    return 1 if found or failed or not ends["bare"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
