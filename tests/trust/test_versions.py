"""Versions that lie: forks, nightlies, doubled and broken metadata, folders in the way, no source."""

from __future__ import annotations

import compileall
import importlib
import shutil

import pytest

from tests.conftest import World
from vlmpatch.catalog.model import State

NEEDS = '{ fakelib = ">=1.5.0.dev0,<2.dev0" }'


@pytest.mark.parametrize(
    ("recorded", "stated", "state"),
    [
        (["1.5"], None, State.APPLIED),
        (["1.5.0.dev20260801+git1234"], None, State.APPLIED),  # a nightly
        (["1.9+cu128.fork"], None, State.APPLIED),
        (["2.0.0rc1"], None, State.NOT_NEEDED),
        (["1.4"], None, State.NOT_NEEDED),
        (["0.0.0"], None, State.NOT_NEEDED),
        (["0.0.0"], "1.6", State.APPLIED),  # a fork that forgot its metadata; the module says what it is
        (["1.6"], "2.0", State.NOT_NEEDED),
        (["1.6", "2.1"], "1.6", State.APPLIED),  # the rest of an upgrade that was interrupted
        (["unknown"], None, State.APPLIED),  # then the code decides
        (["1!1.6"], None, State.NOT_NEEDED),
        ([None], "1.6", State.APPLIED),  # metadata without a version
        ([], "1.6", State.APPLIED),  # a checkout on PYTHONPATH
        ([], None, State.APPLIED),
    ],
)
def test_what_runs_is_what_counts(
    world: World, recorded: list[str | None], stated: str | None, state: State, warnings: list[str]
) -> None:
    for version in recorded:
        world.distribution("fakelib", version)
    says = f"__version__ = {stated!r}\n" if stated else ""
    world.package("fakelib", says + 'def greet(who):\n    return "hello " + who\n')
    id_ = world.patch("fakelib", NEEDS)
    engine = world.engine()
    assert engine.status()[id_].state in (state, State.ARMED, State.NOT_NEEDED)
    said = importlib.import_module("fakelib").greet("you")
    assert engine.status()[id_].state is state
    assert said == ("goodbye you" if state is State.APPLIED else "hello you")
    assert warnings == []


def test_a_folder_in_the_way(world: World, warnings: list[str]) -> None:
    """The current folder holds a ``fakelib`` of its own, without code: the user's data, most likely."""
    (world.folder / "fakelib").mkdir()
    (world.folder / "fakelib" / "notes.txt").write_text("")
    id_ = world.patch("fakelib", NEEDS)
    engine = world.engine()
    importlib.import_module("fakelib")
    assert engine.status()[id_].state is State.NOT_NEEDED


def test_no_source(world: World, warnings: list[str]) -> None:
    world.distribution("fakelib", "1.6")
    world.package("fakelib")
    compileall.compile_file(str(world.folder / "fakelib.py"), legacy=True, quiet=1)
    (world.folder / "fakelib.py").unlink()
    shutil.rmtree(world.folder / "__pycache__", ignore_errors=True)
    importlib.invalidate_caches()
    id_ = world.patch("fakelib", NEEDS)
    engine = world.engine()
    assert importlib.import_module("fakelib").greet("you") == "hello you"
    assert engine.status()[id_].state is State.CONFLICT


@pytest.mark.parametrize(
    ("name", "version", "stated", "state"),
    [
        ("fakelib-nightly", "1.6", None, State.APPLIED),  # nothing says which it is, so its code does
        ("fakelib-nightly", "9", "1.6", State.APPLIED),
        ("fakelib-nightly", "1.6", "2.0", State.NOT_NEEDED),
        ("our-fakelib", "0.1", "2.0", State.NOT_NEEDED),
    ],
)
def test_a_renamed_distribution(
    world: World, name: str, version: str, stated: str | None, state: State, warnings: list[str]
) -> None:
    world.distribution(name, version)
    says = f"__version__ = {stated!r}\n" if stated else ""
    world.package("fakelib", says + 'def greet(who):\n    return "hello " + who\n')
    id_ = world.patch("fakelib", NEEDS)
    engine = world.engine()
    importlib.import_module("fakelib")
    assert engine.status()[id_].state is state
    assert warnings == []


def test_a_vendored_copy_is_another_module(world: World, warnings: list[str]) -> None:
    world.distribution("fakelib", "1.6")
    world.package("fakelib")
    vendor = world.folder / "host" / "_vendor"
    vendor.mkdir(parents=True)
    for folder in (vendor.parent, vendor):
        (folder / "__init__.py").touch()
    shutil.copy(world.folder / "fakelib.py", vendor)
    id_ = world.patch("fakelib", NEEDS)
    engine = world.engine()
    assert importlib.import_module("host._vendor.fakelib").greet("you") == "hello you"
    assert engine.status()[id_].state is State.ARMED
    assert importlib.import_module("fakelib").greet("you") == "goodbye you"
    assert importlib.import_module("host._vendor.fakelib").greet("you") == "hello you"


@pytest.mark.parametrize(("theirs", "state"), [("1.7", State.APPLIED), ("2.0", State.NOT_NEEDED)])
def test_a_vendored_copy_that_goes_first_on_the_path_is_the_one_that_runs(
    world: World, theirs: str, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.distribution("fakelib", "1.6")
    world.package("fakelib", '__version__ = "1.6"\ndef greet(who):\n    return "hello " + who\n')
    vendor = world.folder / "vendor"
    vendor.mkdir()
    source = (world.folder / "fakelib.py").read_text().replace("1.6", theirs)
    (vendor / "fakelib.py").write_text(source)
    id_ = world.patch("fakelib", NEEDS)
    engine = world.engine()
    monkeypatch.syspath_prepend(str(vendor))
    importlib.import_module("fakelib")
    assert engine.status()[id_].state is state
