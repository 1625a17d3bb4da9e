from __future__ import annotations

import importlib

import pytest

from tests.conftest import World
from vlmpatch.catalog.model import Entry, State
from vlmpatch.gate import versions
from vlmpatch.gate.source import NoSource
from vlmpatch.gate.verdict import Verdict, by_version, unseen


def verdict(world: World, requires: str) -> Verdict:
    id_ = world.patch("m", requires)
    entry: Entry = world.catalog().entries[id_]
    return by_version(entry, {})


@pytest.mark.parametrize(
    ("version", "specifier", "inside"),
    [
        ("4.57.6", ">=4.35,<5.0.0.dev0", True),
        ("5.0.0rc1", ">=4.35,<5.0.0.dev0", False),
        ("5.0.0.dev0", ">=4.35,<5.0.0.dev0", False),
        ("5.0.0rc1", ">=5.0.0.dev0", True),
        ("4.57.0.dev0", ">=4.35,<5.0.0.dev0", True),
        ("2.13.0+cpu", ">=2.5", True),
        ("0.18.2+unknown", "==0.18.2", True),
        ("0.19.3.dev1", "<0.19.3.dev0", False),
        ("1!0.1", "<5.0.0.dev0", False),
    ],
)
def test_ranges(world: World, version: str, specifier: str, inside: bool) -> None:
    world.distribution("fakelib", version)
    assert verdict(world, f'{{ fakelib = "{specifier}" }}').needed is inside


def test_all_ranges_must_hold(world: World) -> None:
    world.distribution("liba", "1.0")
    world.distribution("libb", "3.0")
    assert verdict(world, '{ liba = ">=1", libb = ">=2" }') == (True, "liba 1.0, libb 3.0")
    assert verdict(world, '{ liba = ">=1", libb = "<2.dev0" }') == (False, "libb 3.0 is not <2.dev0")


def test_absent(world: World) -> None:
    assert verdict(world, '{ nosuchlib = ">=1" }') == (False, "nosuchlib is not installed")


def test_an_unreadable_version_leaves_the_decision_to_the_code(world: World) -> None:
    world.distribution("forked", "0.14.5-our_own-build")
    found = verdict(world, '{ forked = ">=0.14" }')
    assert found.needed
    assert "its code decides" in found.reason


def test_a_broken_range_is_an_error_of_the_catalog(world: World) -> None:
    world.distribution("fakelib", "1")
    with pytest.raises(ValueError, match=r"requires\.fakelib"):
        verdict(world, '{ fakelib = "about 2" }')


def test_package_without_metadata_is_read_from_its_source(world: World) -> None:
    world.package("bare", '__version__ = "1.2.3"\n')
    assert versions.installed("bare", "bare").version == "1.2.3"


def test_package_that_says_no_version_at_all(world: World) -> None:
    world.package("mute", "x = 1\n")
    assert versions.installed("mute", "mute").version == "unknown"


def test_metadata_without_a_version(world: World) -> None:
    world.distribution("half", None)
    world.package("half", '__version__ = "0.9"\n')
    assert versions.installed("half", "half").version == "0.9"


@pytest.mark.parametrize("record", ["old-1.3.egg-info", "old-1.3.egg-info/PKG-INFO"])
def test_metadata_of_an_older_installer(world: World, record: str) -> None:
    path = world.folder / record
    path.parent.mkdir(exist_ok=True)
    path.write_text("Metadata-Version: 1.0\nName: old\nVersion: 1.3\n")
    importlib.invalidate_caches()
    assert versions.installed("old", "old").version == "1.3"


def test_the_loaded_module_stands_above_metadata(world: World, imported: object) -> None:
    world.distribution("twice", "1.0")
    world.package("twice", '__version__ = "2.0"\n')
    __import__("twice")
    found = versions.installed("twice", "twice")
    assert found.version == "2.0"
    assert "metadata says 1.0" in found.remark


def test_two_records_of_one_distribution_are_remarked(world: World) -> None:
    world.distribution("double", "1.0")
    world.distribution("double", "2.0")
    assert "several are recorded" in versions.installed("double", "double").remark


def test_a_distribution_with_another_module_name(world: World) -> None:
    world.package("swiftlike", '__version__ = "3.4.1"\n')
    assert versions.installed("ms-swiftlike", "swiftlike").version == "3.4.1"


@pytest.mark.parametrize(
    ("target", "state"),
    [
        ("fakelib", State.CONFLICT),
        ("fakelib.inner", State.CONFLICT),
        ("other_name.inner", State.CONFLICT),  # what a distribution is imported by
        ("dashed_lib", State.CONFLICT),
        ("trainer", State.NOT_NEEDED),  # anybody's
        ("fakelibrary", State.NOT_NEEDED),
    ],
)
def test_without_a_source_it_depends_on_whose_module_it_is(world: World, target: str, state: State) -> None:
    id_ = world.patch(target, '{ fakelib = ">=1", named-otherwise = ">=1", dashed-lib = ">=1" }')
    entry = world.catalog().entries[id_]
    found = unseen(entry, target, {"named-otherwise": "other_name"}, NoSource("it has no source"))
    assert (found.id, found.state) == (id_, state)
    assert found.reason.startswith("it has no source")
