"""What `make test-all` found, file by file, kept in ``data/compat/tests.json`` with the commit it ran on.

    python -m tests.lab.record REPORT.xml

adds the files of a report that pytest wrote (``--junitxml``). All of it takes hours, so it may be run in
parts (``make test-all FILES=tests/e2e/test_mixed.py``): each file has a commit of its own. Nothing is
recorded while the checkout differs from its commit: nobody could run again what was run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
from pathlib import Path
from typing import TypedDict
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / "data" / "compat" / "tests.json"


class Ran(TypedDict):
    """One test file: when and on which commit it ran, how its tests ended, and how long they took."""

    commit: str
    date: str
    passed: int
    failed: int
    skipped: int
    seconds: int


def read(report: str, commit: str, date: str) -> dict[str, Ran]:
    """The files of a JUnit report.

    Raises:
        ElementTree.ParseError: ``report`` is no XML.
    """
    found: dict[str, Ran] = {}
    seconds: dict[str, float] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        words = case.get("classname", "").split(".")
        module = [word for word in words if not word.startswith("Test")]  # a class of tests has its own name
        name = "/".join(module) + ".py"
        ran = found.setdefault(name, Ran(commit=commit, date=date, passed=0, failed=0, skipped=0, seconds=0))
        ended = {child.tag for child in case}
        if ended & {"failure", "error"}:
            ran["failed"] += 1
        elif "skipped" in ended:
            ran["skipped"] += 1
        else:
            ran["passed"] += 1
        seconds[name] = seconds.get(name, 0.0) + float(case.get("time", 0))
        ran["seconds"] = round(seconds[name])
    return found


def changed(root: Path, but: Path) -> list[str]:
    """The files under version control that differ from the last commit, without ``but``."""
    listed = _git(root, "status", "--porcelain", "--untracked-files=no").splitlines()
    return [line[3:] for line in listed if root / line[3:] != but]


def write(found: dict[str, Ran], root: Path, store: Path) -> None:
    """Add ``found`` to ``store``, and drop files that are gone."""
    known: dict[str, Ran] = json.loads(store.read_text()) if store.exists() else {}
    kept = {name: ran for name, ran in {**known, **found}.items() if (root / name).exists()}
    store.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.record")
    parser.add_argument("report", type=Path)
    report = parser.parse_args().report.read_text()
    if different := changed(ROOT, STORE):
        raise SystemExit(f"not recorded: {', '.join(different[:5])} differ from the last commit")
    commit = _git(ROOT, "rev-parse", "--short=12", "HEAD").strip()
    found = read(report, commit, datetime.date.today().isoformat())
    write(found, ROOT, STORE)
    print(f"{len(found)} test files of {commit} recorded in {STORE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
