"""Repositories are fetched at the commits on record, once, and what cannot be had is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lab import launches, sources
from tests.shipped import programs


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def upstream(tmp_path: Path) -> tuple[str, str]:
    """Where a repository lies, and its commit."""
    folder = tmp_path / "upstream" / "owner" / "name"
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "train.py").write_text("print()\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    return f"{tmp_path}/upstream/{{}}", git(folder, "rev-parse", "HEAD")


def test_a_commit_is_fetched_once_and_read_as_a_program(tmp_path: Path, upstream: tuple[str, str]) -> None:
    address, commit = upstream
    folder = tmp_path / "clones"
    folder.mkdir()
    assert sources.fetch(folder, {"owner/name": [commit]}, address) == []
    assert sources.fetch(folder, {"owner/name": [commit]}, "/nowhere/{}") == []
    shipped = launches.Shipped("owner/name", commit, ".", "train.py")
    launches.unpacked(launches.clone(folder, shipped), commit, tmp_path)
    assert (tmp_path / "train.py").read_text() == "print()\n"


def test_what_cannot_be_had_is_named(tmp_path: Path, upstream: tuple[str, str]) -> None:
    address, commit = upstream
    asked = {"owner/gone": ["0" * 40], "owner/name": ["1" * 40, commit]}
    problems = sources.fetch(tmp_path, asked, address)
    assert [problem.partition(":")[0] for problem in problems] == [
        f"owner/gone {'0' * 40}",
        f"owner/name {'1' * 40}",
    ]


def test_every_program_and_every_script_has_its_commit() -> None:
    asked = sources.wanted()
    known, _ = programs.read()
    assert all(program.commit in asked[program.repository] for program in known.values())
    assert all(shipped.commit in asked[shipped.repository] for shipped in launches.read())
    assert len({program.repository for program in known.values()}) >= 12
