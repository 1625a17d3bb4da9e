"""The proofs a release needs, and what each ran on last, kept in ``data/proofs.csv``."""

from __future__ import annotations

import datetime
import hashlib
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.lab import table

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / "data" / "proofs.csv"
# What each says: a release waits for all of them, on the commit that is tagged.
PROOFS = {
    "lint": "make lint",
    "unit": "make unit",
    "pythons": "make test-pythons",
    "test": "make test",
    "all": "make test-all",
    "busy": "make busy",
    "matrix": "make matrix",
    "drift": "make drift",
    "trust": ".venv/bin/python -m tests.trust tf457-ds0182 --faults 2 --rounds 4",
    "site": "make site",
    "build": ".venv/bin/python -m nox --session build",
}
# What is written after a proof and proves nothing: it may change between the proof and the tag.
AFTERWARDS = ("data/proofs.csv", "data/tests.csv", "CHANGELOG.md", "CITATION.cff", "changelog.d/")


class Ran(NamedTuple):
    """Where and when a proof was held last; ``content`` is what was under version control then."""

    commit: str
    content: str
    date: str


COLUMNS = ("proof", *Ran._fields)


def known(store: Path = STORE) -> dict[str, Ran]:
    """What is on record.

    Raises:
        table.Broken: the file is not whole.
    """
    if not store.exists():
        return {}
    lines = table.read(store, COLUMNS, "python -m tests.release --run PROOF")
    return {line["proof"]: Ran(*(line[name] for name in Ran._fields)) for _, line in lines}


def record(proof: str, root: Path = ROOT, store: Path = STORE) -> None:
    """``proof`` was held on the commit as it lies there."""
    made = {**known(store), proof: Ran(head(root), content(root), datetime.date.today().isoformat())}
    table.write(store, COLUMNS, [(name, *ran) for name, ran in sorted(made.items())])


def head(root: Path = ROOT) -> str:
    return git(root, "rev-parse", "--short=12", "HEAD").strip()


def content(root: Path = ROOT) -> str:
    """A digest of the files of the last commit that count: a rebase or a squash leaves it as it is."""
    listed = git(root, "ls-tree", "-r", "HEAD").splitlines()
    counted = [line for line in listed if not line.partition("\t")[2].startswith(AFTERWARDS)]
    return hashlib.sha256("\n".join(counted).encode()).hexdigest()[:12]


def changed(commit: str, root: Path = ROOT) -> list[str] | None:
    """The files that count and that differ from ``commit`` here; None where there is no such commit."""
    try:
        listed = git(root, "diff", "--name-only", commit).splitlines()
        listed += git(root, "ls-files", "--others", "--exclude-standard").splitlines()
    except subprocess.CalledProcessError:
        return None
    return [name for name in listed if not name.startswith(AFTERWARDS)]


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout
