"""A stranger's path: the wheel beside a training stack, doctor, lock, a run, an upgrade to one patch more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_downstream import EXAMPLE, STACK, upgraded
from tests.lab import envs, launch
from tests.lab.envs import Stack

pytestmark = pytest.mark.slow
TRAIN = ("-m", "tiny_vl.train", "--output", "out", "--steps", "2")


def built(source: Path, folder: Path, version: str) -> Path:
    """The wheel of a copy of this repository, as ``version``."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(launch.ROOT / name, source)
    said = source / "vlmpatch" / "__init__.py"
    lines = said.read_text("utf-8").splitlines(keepends=True)
    kept = [f'__version__ = "{version}"\n' if line.startswith("__version__") else line for line in lines]
    said.write_text("".join(kept), "utf-8")
    words = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def uv(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "uv", *map(str, words)], check=True, capture_output=True)


def beside(stack: Stack, folder: Path) -> Path:
    """An empty environment in which the packages of ``stack`` can be imported; its interpreter."""
    uv("venv", "--python", stack.python, folder)
    (own,) = folder.glob("lib/python3.*/site-packages")
    theirs = next(stack.python.parents[1].glob("lib/python3.*/site-packages"))
    (own / "stack.pth").write_text(f"import site; site.addsitedir({str(theirs)!r})\n")
    return folder / "bin" / "python"


def test_from_a_wheel_to_the_next(tmp_path: Path) -> None:
    stack = envs.read_stacks()[STACK]
    envs.make(stack)
    # The first release lacks what the second has besides.
    first = upgraded(tmp_path / "first")
    shutil.copy(launch.ROOT / "compat.toml", first)
    (first / "patches" / "transformers" / "one_patch_more.py").unlink()
    wheels = [
        built(first, tmp_path / "one", "0.2.0"),
        built(upgraded(tmp_path / "second"), tmp_path / "two", "0.2.1"),
    ]
    python = beside(stack, tmp_path / "env")
    work = Path(shutil.copytree(EXAMPLE, tmp_path / "work", ignore=shutil.ignore_patterns("__pycache__")))
    (work / "vlmpatch.lock").unlink()

    def run(*words: str | Path, **env: str) -> launch.Finished:
        path = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        return launch.run(stack, [python, *words], limit=240, cwd=work, checkout=False, env={**path, **env})

    uv("pip", "install", "--python", python, wheels[0])
    asked = run("-m", "vlmpatch", "doctor", "--json")
    found = json.loads(asked.output)
    assert (asked.rc, found["sound"], found["vlmpatch"]) == (0, True, "0.2.0"), asked
    acting = [each for each in found["patches"] if each["state"] == "armed"]
    written = run("-m", "vlmpatch", "lock")
    assert (written.rc, f"patches: {len(acting)}, vlmpatch 0.2.0" in written.output) == (0, True), written
    trained = run(*TRAIN, VLMPATCH_LOCK=str(work / "vlmpatch.lock"), VLMPATCH_STRICT="1")
    assert trained.rc == 0, trained

    uv("pip", "install", "--python", python, wheels[1])
    told = run("-m", "vlmpatch", "lock", "--diff", "--markdown")
    subject = "vlmpatch 0.2.0 → 0.2.1 · patches: 1 added, 0 removed, 0 changed; versions: 0 changed"
    assert (told.rc, told.output.splitlines()[0]) == (1, subject), told
    assert "- one-patch-more: What a later release has besides. (transformers 4.57.6; will be" in told.output
    warned = json.loads(run("-m", "vlmpatch", "doctor", "--json", VLMPATCH_LOCK="vlmpatch.lock").output)
    (unlike,) = [each for each in warned["findings"] if each["code"] == "D12"]
    assert unlike["evidence"] == "applied and not in it: one-patch-more"
    assert "applied and not in it: one-patch-more" in run(*TRAIN).output
    assert run("-m", "vlmpatch", "lock").rc == 0
    assert run(*TRAIN).rc == 0
