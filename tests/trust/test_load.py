"""Many patches, many modules, many ranks that start at once from one folder."""

from __future__ import annotations

import importlib
import marshal
import os
import shutil
import subprocess
import sys
import threading
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import World
from tests.lab.waits import communicated
from tests.trust.snapshot import differences, snapshot
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read

ROOT = Path(__file__).resolve().parents[2]
PATCHES, MODULES, RANKS = 200, 5_000, 64

RANK = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.001)
import vlmpatch
from vlmpatch.bootstrap import engine
print(len(vlmpatch.status()), len(engine().problems))
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """An installation that nobody has started from yet."""
    for name in ("vlmpatch", "patches"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "compat.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("ranks", [8, pytest.param(RANKS, marks=pytest.mark.slow)])
def test_ranks_that_start_at_once_from_one_folder(ranks: int, shared: Path) -> None:
    """Each has the whole catalog, whichever process compiles it; every fourth is killed at some moment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLMPATCH_", "PYTHON"))}
    go = shared / "go"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(go)],
            env={**kept, "PYTHONPATH": str(shared), "RANK": str(rank)},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    time.sleep(0.5)
    go.touch()
    compiled = shared / "__pycache__" / "compat.index"
    with reading(compiled) as broken:
        for number, process in enumerate(started[::4]):
            time.sleep(0.02 * (number % 4))
            process.kill()
        said = [communicated(process)[0].strip() for process in started]
    entries = len(read(default_path()).entries)
    survivors = [words for number, words in enumerate(said) if number % 4]
    assert survivors == [f"{entries} 0"] * len(survivors)
    assert not broken
    assert marshal.loads(compiled.read_bytes())["source"] == (shared / "compat.toml").read_bytes()


class reading:
    """Inside the block the file is read again and again; what was not whole is kept."""

    def __init__(self, path: Path) -> None:
        self.path, self.broken, self.over = path, list[str](), threading.Event()
        self.thread = threading.Thread(target=self._read)

    def __enter__(self) -> list[str]:
        self.thread.start()
        return self.broken

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _read(self) -> None:
        while not self.over.wait(0.002):
            try:
                marshal.loads(self.path.read_bytes())
            except FileNotFoundError:
                continue
            except Exception as error:
                self.broken.append(repr(error))


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many modules as a training has, and more."""
    for number in range(MODULES):
        name = f"crowd_{number}"
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)


def test_many_patches_are_applied_undone_and_applied_again(world: World, crowd: None) -> None:
    world.distribution("fakelib", "1.5")
    names = [world.package(f"loaded_{number}") for number in range(PATCHES)]
    for name in names:
        world.patch(name, '{ fakelib = ">=1" }')
    modules = [importlib.import_module(name) for name in names[::2]]
    before = snapshot(modules)
    engine = world.engine()
    later = [importlib.import_module(name) for name in names[1::2]]
    for state, said in (("applied", "goodbye you"), ("off", "hello you")) * 2:
        assert {status.state.value for status in engine.status().values()} == {state}
        assert {module.greet("you") for module in (*modules, *later)} == {said}
        if state == "applied":
            engine.undo([])
            assert not differences(before, snapshot(modules))
        else:
            engine.redo([])


def test_an_import_costs_the_same_beside_any_number_of_modules(
    world: World, request: pytest.FixtureRequest
) -> None:
    for number in range(PATCHES):
        world.patch(f"never_{number}", '{ fakelib = ">=1" }')
    for name in ("few", "many"):
        world.package(name)
    world.engine()
    few = calls("few")
    request.getfixturevalue("crowd")
    assert calls("many") <= few + MODULES  # noticed once each
    for number in range(3):
        world.package(f"again_{number}")
        # One more where something was imported since the last look: it is looked at.
        assert calls(f"again_{number}") <= few + 1


def calls(name: str) -> int:
    """Calls of ours while ``name`` is imported."""
    count = 0
    ours = str(ROOT / "vlmpatch")

    def watch(frame: Any, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(ours)

    sys.setprofile(watch)
    try:
        importlib.import_module(name)
    finally:
        sys.setprofile(None)
    return count
