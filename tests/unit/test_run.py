"""``python -m vlmpatch run``: what it hands on, and that it says so where it cannot work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_command_line import CHECKOUT, command
from vlmpatch.tools import run


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, ""), ("", ""), (":", "::"), ("a:", ":a:"), ("a::b", ":a::b"), (f"{run.INJECT}:a", ":a")],
)
def test_entries_of_the_path_stay_as_they_are(before: str | None, after: str) -> None:
    environ = {} if before is None else {"PYTHONPATH": before}
    assert run.environment(environ)["PYTHONPATH"] == run.INJECT + after


def test_the_current_folder_stays_importable(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('found')\n")
    (tmp_path / "below").mkdir()
    script = tmp_path / "below" / "script.py"
    script.write_text("import mine\n")
    done = subprocess.run(
        [sys.executable, "-m", "vlmpatch", "run", "--", sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT}:"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "found\n", done.stderr


PYTHON = "/usr/bin/python3"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([PYTHON, "-I", "train.py"], "python -I"),
        ([PYTHON, "-uE", "train.py"], "python -E"),
        ([PYTHON, "-W", "ignore", "-S", "-c", "pass"], "python -S"),
        (["env", "-i", PYTHON, "train.py"], "env -i"),
        (["/usr/bin/env", "A=1", PYTHON, "-I", "train.py"], "python -I"),
        ([PYTHON, "train.py", "-I"], None),
        ([PYTHON, "-mtorch.distributed.run", "-I"], None),
        ([PYTHON, "-c", "pass", "-E"], None),
        ([PYTHON, "-u", "--check-hash-based-pycs", "train.py", "-S"], None),
        (["env", "A=1", PYTHON, "train.py"], None),
        (["bash", "-i"], None),
        (["torchrun", "train.py"], None),
    ],
)
def test_it_says_so_where_it_cannot_work(words: list[str], said: str | None) -> None:
    reason = run.deaf(words, "/nowhere")
    assert (said is None and reason is None) or (said is not None and said in (reason or ""))


def test_a_first_line_that_deafens(tmp_path: Path) -> None:
    script = tmp_path / "torchrun"
    script.write_text("#!/usr/bin/python3 -Es\n")
    assert "python -E" in (run.deaf([str(script)], str(script)) or "")
    script.write_text("#!/usr/bin/python3\n")
    assert run.deaf([str(script), "-E"], str(script)) is None


def test_a_colon_in_the_installation() -> None:
    assert "install vlmpatch elsewhere" in (run.deaf([PYTHON], "/nowhere", "/home/a:b/inject") or "")


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_the_command_runs_all_the_same(flag: str) -> None:
    probe = "import sys; print('vlmpatch' in sys.modules)"
    done = command("run", sys.executable, flag, "-c", probe)
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert f"inactive: `python {flag}`" in done.stderr
