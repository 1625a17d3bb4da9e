"""``tests.innocents.suites``: a test that vlmpatch changes is found, one that changes by chance is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.innocents import suites

SUITE = """
import subprocess, sys
from pathlib import Path


class TestNames:
    def test_told(self):
        child = subprocess.run([sys.executable, "-c", "import sys; sys.exit('vlmpatch' in sys.modules)"])
        assert (child.returncode, "vlmpatch" in sys.modules) == (0, False)

def test_same():
    pass

def test_fails_both_ways():
    raise ValueError
"""
BY_CHANCE = """
import sys
from pathlib import Path

def test_fails_once():
    mark = Path(__file__).with_name("mark")
    if "vlmpatch" in sys.modules and not mark.exists():
        mark.touch()
        raise ValueError
"""


def run(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    suite, out = folder / "suite", folder / "out"
    for each in (suite, out):
        each.mkdir()
    (suite / "test_it.py").write_text(text)
    ended = suites.report(suites.Suite(Path(sys.executable), suite, out), [])
    return ended, capsys.readouterr().out


def test_what_vlmpatch_changes_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended, told = run(tmp_path, SUITE, capsys)
    assert ended == 1
    assert "HARMED test_it.py::TestNames::test_told\n" in told
    assert "1 differed once, 1 each time" in told


def test_what_differs_by_chance_is_not_a_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended, told = run(tmp_path, BY_CHANCE, capsys)
    assert ended == 0
    assert "1 differed once, 0 each time; patches that failed: none" in told


def test_no_tests_is_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "", capsys)[0] == 1


def test_arguments_keep_their_spaces() -> None:
    assert suites.split(["a", "b", "--", "-k", "one or two"]) == (["a", "b"], ["-k", "one or two"])
