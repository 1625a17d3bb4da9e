"""The checklist of a release: no proof counts for another commit, no build that differs is let through."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from tests.lab import envs
from tests.release import __main__ as release
from tests.release import built, proofs, writing
from vlmpatch import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
    return next((line.good, line.words) for line in release.held(root) if line.words.startswith(f"{proof}: "))


def test_a_proof_counts_for_its_commit(repository: Path) -> None:
    assert held(repository, "unit") == (False, "unit: never recorded")
    proofs.record("unit", repository, repository / "data" / "proofs.csv")
    assert held(repository, "unit")[0]
    commit(repository)
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n- one\n")
    commit(repository)
    good, words = held(repository, "unit")
    assert (good, words.startswith("unit: passed on ")) == (True, True)


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_a_change_makes_it_void(repository: Path, name: str) -> None:
    proofs.record("unit", repository, repository / "data" / "proofs.csv")
    (repository / name).write_text("2\n")
    good, words = held(repository, "unit")
    assert (good, "1 files differ since" in words) == (False, True)
    commit(repository)
    assert not held(repository, "unit")[0]


def test_a_commit_that_is_not_here_proves_nothing(repository: Path) -> None:
    row = "proof,commit,content,date\nunit,abcabcabcabc,{},2026-01-01\n"
    (repository / "data" / "proofs.csv").write_text(row.format("defdefdefdef"))
    passed = "unit: passed on abcabcabcabc, 2026-01-01"
    assert held(repository, "unit") == (False, f"{passed}; not a commit of this repository")
    (repository / "data" / "proofs.csv").write_text(row.format(proofs.content(repository)))
    assert held(repository, "unit") == (True, passed)  # rebased: the same files


def test_what_is_open_comes_with_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["release"])
    monkeypatch.setattr(release, "readiness", lambda: [release.Line(True, "written", "write")])
    monkeypatch.setattr(release, "held", lambda: [release.Line(False, "unit: never recorded", "run it")])
    assert release.main() == 1
    said = capsys.readouterr().out
    assert "done  written\n" in said
    assert "OPEN  unit: never recorded\n        run it\n\n1 open: not ready" in said.replace(
        "\n\nProofs", "\nProofs"
    )


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


def test_both_builds_are_of_one_commit(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run

    def fake(words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if words[0] == "git":
            return run(words, **options)
        folder, code = Path(words[-1]), Path(options["cwd"], "code.py").read_text()
        folder.mkdir()
        (folder / "x.whl").write_text(code)
        (repository / "code.py").write_text(f"{folder.name}, after\n")  # a commit beside the build
        commit(repository)
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(subprocess, "run", fake)
    assert list(built.build(tmp_path, "1700000000", repository)) == ["x.whl"]


@pytest.mark.slow
def test_two_builds_are_the_same(tmp_path: Path) -> None:
    sums = built.build(tmp_path, "1700000000")
    assert sorted(Path(name).suffix for name in sums) == [".gz", ".whl"]


@pytest.fixture
def releasable(tmp_path: Path) -> Path:
    """A repository of what a release writes, with one fragment."""
    root = tmp_path / "releasable"
    names = [name for name, _ in writing.PLACES]
    for name in (*names, "pyproject.toml", "CHANGELOG.md", "changelog.d/template.md.jinja"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, root / name)
    (root / "changelog.d" / "what-is-new.added.md").write_text("Something is new.\n")
    proofs.git(root, "init", "--quiet")
    commit(root)
    return root


def test_a_release_is_written_everywhere_at_once(releasable: Path) -> None:
    address = "https://vlmpatch.dev/vlmpatch"
    writing.write("9.8.7", "2031-02-03", address, releasable)
    for name, form in writing.PLACES:
        assert form.format("9.8.7") in (releasable / name).read_text("utf-8"), name
        assert form.format(__version__) not in (releasable / name).read_text("utf-8"), name
    cited = yaml.safe_load((releasable / "CITATION.cff").read_text())
    assert (str(cited["date-released"]), cited["repository-code"]) == ("2031-02-03", address)
    project = tomllib.loads((releasable / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["urls"]["Issues"] == f"{address}/issues"
    told = (releasable / "CHANGELOG.md").read_text("utf-8")
    assert "## [9.8.7] - 2031-02-03\n" in told
    assert "- Something is new.\n" in told
    assert not list((releasable / "changelog.d").glob("*.added.md"))
    commit(releasable)
    writing.write("9.9.0", "2031-03-04", "https://vlmpatch.dev/moved", releasable)  # once more, and elsewhere
    assert (releasable / "CITATION.cff").read_text().count("repository-code: ") == 1
    assert "vlmpatch.dev/vlmpatch" not in (releasable / "pyproject.toml").read_text("utf-8")


def test_what_comes_after_it_was_written_goes_into_the_same_text(releasable: Path) -> None:
    writing.write("9.8.7", "2031-02-03", root=releasable)
    for name, text in (("more.added", "More is new."), ("well.fixed", "Something works.")):
        (releasable / "changelog.d" / f"{name}.md").write_text(f"{text}\n")
    commit(releasable)
    writing.write("9.8.7", "2031-02-05", root=releasable)
    told = (releasable / "CHANGELOG.md").read_text("utf-8")
    made = "### Added\n\n- Something is new.\n- More is new.\n\n### Fixed\n\n- Something works.\n\n## ["
    assert f"## [9.8.7] - 2031-02-05\n\n{made}" in told
    assert not list((releasable / "changelog.d").glob("*.*.md"))


def test_the_address_may_come_later(releasable: Path) -> None:
    """Without it no release is ready; what is no address of the public is refused."""
    (unready,) = [
        line for line in release.readiness(releasable) if "[project.urls]" in line.words and not line.good
    ]
    assert "--address URL" in unready.remedy
    for address in ("http://vlmpatch.dev/x", "https://example.org/x", "https://git.test/x", "https://host/x"):
        with pytest.raises(built.Refused, match="is no public address"):
            writing.move(address, releasable)
    writing.move("https://vlmpatch.dev/vlmpatch", releasable)
    assert not [
        line for line in release.readiness(releasable) if "[project.urls]" in line.words and not line.good
    ]
    assert "repository-code: https://vlmpatch.dev/vlmpatch\n" in (releasable / "CITATION.cff").read_text(
        "utf-8"
    )


def test_nothing_is_written_over_what_is_not_committed(releasable: Path) -> None:
    (releasable / "vlmpatch" / "__init__.py").write_text('__version__ = "0.0.1"\n')
    with pytest.raises(built.Refused, match=r"vlmpatch/__init__\.py differ"):
        writing.write("9.8.7", "2031-02-03", root=releasable)
    assert "9.8.7" not in (releasable / "CITATION.cff").read_text("utf-8")


def test_a_place_that_says_no_version_is_named(releasable: Path) -> None:
    (releasable / "docs" / "lock.md").write_text("nothing\n")
    commit(releasable)
    with pytest.raises(built.Refused, match=r"docs/lock\.md does not say vlmpatch = "):
        writing.write("9.8.7", "2031-02-03", root=releasable)
    assert "9.8.7" not in (releasable / "vlmpatch" / "__init__.py").read_text("utf-8")


@pytest.mark.parametrize("page", ["docs/stability.md", "docs/zh-CN/stability.md"])
def test_the_supported_versions_are_those_that_are_declared_and_run(page: str) -> None:
    text = (CHECKOUT / page).read_text("utf-8")
    told = {row[0]: row[1:] for row in re.findall(r"^\| (\w+) \| (\S+) \| (\S+) – (\S+) \|$", text, re.M)}
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    targets = [target.partition(">=") for target in project["optional-dependencies"]["targets"]]
    assert list(told) == [name for name, _, _ in targets]
    pins = [pin for stack in envs.read_stacks().values() for pin in (stack.torch, *stack.packages)]
    for name, _, floor in targets:
        run = sorted({pin.partition("==")[2] for pin in pins if pin.startswith(f"{name}==")}, key=Version)
        assert told[name][1:] == (run[0], run[-1])
        assert not floor or told[name][0] == floor
    pythons = [word.rpartition(" ")[2] for word in project["classifiers"] if re.search(r":: 3\.\d+$", word)]
    assert re.search(rf"Python {re.escape(pythons[0])}\D+{re.escape(pythons[-1])}", text)
