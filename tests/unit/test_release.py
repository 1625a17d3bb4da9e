"""The checklist of a release: no proof counts for another commit, no build that differs is let through."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.release import __main__ as release
from tests.release import built, proofs
from vlmpatch import __version__

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one commit."""
    root = tmp_path / "root"
    (root / "data").mkdir(parents=True)
    (root / "code.py").write_text("1\n")
    (root / "CHANGELOG.md").write_text("# Changelog\n")
    proofs.git(root, "init", "--quiet")
    commit(root)
    return root


def commit(root: Path) -> None:
    proofs.git(root, "add", "--all")
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    proofs.git(root, *who, "commit", "--quiet", "--message", "x")


def held(root: Path, proof: str) -> tuple[bool, str]:
    return next((good, words) for good, words in release.held(root) if words.startswith(f"{proof}: "))


def test_a_proof_counts_for_its_commit(repository: Path) -> None:
    assert held(repository, "unit") == (False, "unit: never recorded; make unit")
    proofs.record("unit", repository, repository / "data" / "proofs.csv")
    assert held(repository, "unit")[0]
    commit(repository)
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n- one\n")
    commit(repository)
    good, words = held(repository, "unit")
    assert (good, "unit: on this commit, " in words) == (True, True)


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_a_change_makes_it_void(repository: Path, name: str) -> None:
    proofs.record("unit", repository, repository / "data" / "proofs.csv")
    (repository / name).write_text("2\n")
    good, words = held(repository, "unit")
    assert (good, "1 files differ since" in words) == (False, True)
    commit(repository)
    assert not held(repository, "unit")[0]


def test_a_commit_that_is_not_here_proves_nothing(repository: Path) -> None:
    (repository / "data" / "proofs.csv").write_text("proof,commit,date\nunit,abcabcabcabc,2026-01-01\n")
    assert held(repository, "unit") == (False, "unit: on abcabcabcabc, which is not here; make unit")


def test_what_is_cited_is_what_is_built() -> None:
    cited = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert {"cff-version", "message", "title", "authors", "license"} <= cited.keys()


def test_every_proof_is_a_command_that_there_is() -> None:
    targets = set(re.findall(r"^([\w-]+):", (CHECKOUT / "Makefile").read_text(), re.M))
    sessions = set(re.findall(r"^def (\w+)\(session", (CHECKOUT / "noxfile.py").read_text(), re.M))
    for command in proofs.PROOFS.values():
        words = command.split()
        assert words[0] != "make" or words[1] in targets
        assert "--session" not in words or words[-1] in sessions


def test_a_build_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(words: list[str], cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(words[-1])
        folder.mkdir()
        (folder / "same.tar.gz").write_text("x")
        (folder / "other.whl").write_text(str(cwd))
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(built, "git", lambda *_: "")
    monkeypatch.setattr(subprocess, "run", fake)
    with pytest.raises(built.Refused, match=r"two builds of one commit differ: other\.whl"):
        built.build(tmp_path, "1700000000")


@pytest.mark.slow
def test_two_builds_are_the_same(tmp_path: Path) -> None:
    sums = built.build(tmp_path, "1700000000")
    assert sorted(Path(name).suffix for name in sums) == [".gz", ".whl"]
