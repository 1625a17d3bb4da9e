"""What `make test-all` found, file by file, kept in ``data/tests.csv`` with the commit it ran on.

    python -m tests.lab.record REPORT.xml

adds the files of a report that pytest wrote (``--junitxml``). All of it takes hours, so it may be run in
parts (``make test-all FILES=tests/e2e/test_mixed.py``): each file has a commit of its own. Nothing is
recorded while the checkout differs from its commit: nobody could run again what was run.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.lab import table

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / "data" / "tests.csv"


class Ran(NamedTuple):
    """One test file: when and on which commit it ran, how its tests ended, and how long they took."""

    commit: str
    date: str
    passed: int
    failed: int
    skipped: int
    seconds: int


COLUMNS = ("file", *Ran._fields)


def read(report: str, commit: str, date: str) -> dict[str, Ran]:
    """The files of a JUnit report.

    Raises:
        ElementTree.ParseError: ``report`` is no XML.
    """
    ended: dict[str, Counter[str]] = {}
    seconds: dict[str, float] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        words = case.get("classname", "").split(".")
        module = [word for word in words if not word.startswith("Test")]  # a class of tests has its own name
        name = "/".join(module) + ".py"
        ended.setdefault(name, Counter())[_ended({child.tag for child in case})] += 1
        seconds[name] = seconds.get(name, 0.0) + float(case.get("time", 0))
    return {
        name: Ran(commit, date, counts["passed"], counts["failed"], counts["skipped"], round(seconds[name]))
        for name, counts in ended.items()
    }


def _ended(tags: set[str]) -> str:
    if tags & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in tags else "passed"


def known(store: Path = STORE) -> dict[str, Ran]:
    """What is on record.

    Raises:
        table.Broken: the file is not whole, or a count is no number.
    """
    again = "make test-all"
    found = {}
    for number, line in table.read(store, COLUMNS, again):
        try:
            counts = [int(line[name]) for name in ("passed", "failed", "skipped", "seconds")]
        except ValueError as error:
            raise table.Broken(store, number, str(error), again) from None
        found[line["file"]] = Ran(line["commit"], line["date"], *counts)
    return found


def changed(root: Path, but: Path) -> list[str]:
    """The files under version control that differ from the last commit, without ``but``."""
    listed = _git(root, "status", "--porcelain", "--untracked-files=no").splitlines()
    return [line[3:] for line in listed if root / line[3:] != but]


def write(found: dict[str, Ran], root: Path, store: Path) -> None:
    """Add ``found`` to ``store``, and drop files that are gone."""
    save({name: ran for name, ran in {**known(store), **found}.items() if (root / name).exists()}, store)


def save(found: dict[str, Ran], store: Path) -> None:
    table.write(store, COLUMNS, [(name, *map(str, ran)) for name, ran in sorted(found.items())])


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
