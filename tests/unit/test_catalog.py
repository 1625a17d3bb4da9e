from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import PATCH, UPSTREAM, World
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Catalog
from vlmpatch.catalog.read import parse, read
from vlmpatch.gate.verdict import ranges

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def one(world: World, **keys: str) -> Catalog:
    """A catalog of one sound patch and one with ``keys`` changed."""
    world.patch("some.module", '{ torch = ">=2" }')
    world.patch("some.module", '{ torch = ">=2" }', **keys)
    return world.catalog()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("severity", '"fatal"', "is unknown"),
        ("id", '"nowhere"', "there is no patches/<upstream>/nowhere.py"),
        ("id", '"../evil"', "kebab-case"),
        ("module", '"fakes.fake"', "unknown key"),
        ("id", '"Not_Kebab"', "kebab-case"),
        ("symptoms", '["x"]', "unknown key"),
        ("targets", '"(x)"', "not a list of strings"),
        ("targets", "[]", "is empty"),
        ("targets", '["a b"]', "is not a module name"),
        ("summary_zh", '" "', "is empty"),
        ("summary_zh", "1", "is int, not a string"),
        ("colour", '"red"', "unknown key"),
        ("before", '"yes"', "not a boolean"),
        ("was", '"old"', "not a list of strings"),
        ("was", '["Old_Id"]', "is no former id"),
    ],
)
def test_a_broken_entry_names_itself_and_spares_the_others(
    world: World, key: str, value: str, says: str
) -> None:
    found = one(world, **{key: value})
    assert len(found.entries) == 1
    (problem,) = found.problems
    assert says in problem.what
    assert "compat.toml" in problem.where
    assert key in problem.where
    assert problem.remedy


def test_a_former_id_is_never_used_again(world: World) -> None:
    taken = world.patch("some.module", '{ torch = ">=2" }', was='["old-id"]')
    for was in ("old-id", taken):
        world.patch("some.module", '{ torch = ">=2" }', was=f'["{was}"]')
    found = world.catalog()
    assert found.renamed == {"old-id": taken}
    assert [problem.what for problem in found.problems] == ["names an id that another has"] * 2


def test_no_patch_has_the_former_id_of_another(world: World) -> None:
    later = "fake-900001"
    world.patch("some.module", '{ torch = ">=2" }', was=f'["{later}"]')
    (world.patches / UPSTREAM / "fake_900001.py").write_text(PATCH)
    world.patch("some.module", '{ torch = ">=2" }', id=f'"{later}"')
    (problem,) = world.catalog().problems
    assert problem.what == "appears twice"


def test_a_patch_that_comes_before_names_its_modules(world: World) -> None:
    (problem,) = one(world, before="true", targets='["remote.*"]').problems
    assert problem.where.endswith("before")
    assert "the pattern 'remote.*'" in problem.what


@pytest.mark.parametrize(
    ("requires", "says"),
    [("{}", "is empty"), ("{ torch = 2 }", "not a table of strings"), ('"torch"', "not a table")],
)
def test_broken_requirements(world: World, requires: str, says: str) -> None:
    world.patch("some.module", requires)
    (problem,) = world.catalog().problems
    assert says in problem.what
    assert problem.where.endswith("requires")


def test_a_missing_key_is_named(world: World) -> None:
    world.patch("m", '{ torch = ">=2" }')
    world.entries[0] = world.entries[0].replace('severity = "crash"', "")
    (problem,) = world.catalog().problems
    assert problem.where.endswith("severity")


def test_a_patch_that_lies_in_two_folders_is_neither(world: World) -> None:
    id_ = world.patch("m", '{ torch = ">=2" }')
    (world.patches / "others").mkdir()
    (world.patches / "others" / f"{id_.replace('-', '_')}.py").write_text("")
    (problem,) = world.catalog().problems
    assert problem.where.endswith("id")
    assert "two files" in problem.what


def test_without_chinese_a_summary_is_the_english_one(world: World) -> None:
    id_ = world.patch("m", '{ torch = ">=2" }')
    world.entries[0] = world.entries[0].replace('summary_zh = "你好"', "")
    assert world.catalog().entries[id_].summary_zh == "hello"


def test_an_id_given_twice_keeps_the_first(world: World) -> None:
    first = world.patch("m", '{ torch = ">=2" }')
    world.patch("n", '{ torch = ">=2" }', id=f'"{first}"')
    found = world.catalog()
    assert found.entries[first].targets == ("m",)
    assert "twice" in found.problems[0].what


@pytest.mark.parametrize(
    ("text", "says"),
    [(b"schema = ", "not valid TOML"), (b"\xff\xfe", "not valid TOML"), (b"schema = 99", "schema is 99")],
)
def test_a_file_that_is_no_catalog(tmp_path: Path, text: bytes, says: str) -> None:
    path = tmp_path / "compat.toml"
    path.write_bytes(text)
    found = read(str(path))
    assert found.entries == {}
    assert says in found.problems[0].what


def test_no_file(tmp_path: Path) -> None:
    found = read(str(tmp_path / "compat.toml"))
    assert "cannot be read" in found.problems[0].what
    assert "Reinstall" in found.problems[0].remedy


def test_a_file_in_an_archive(tmp_path: Path) -> None:
    (tmp_path / "vlmpatch.zip").touch()
    found = read(str(tmp_path / "vlmpatch.zip" / "compat.toml"))
    assert "Unpack the archive" in found.problems[0].remedy


toml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(st.fixed_dictionaries({}, optional={"patch": toml_values, "modules": toml_values, "x": toml_values}))
def test_any_data_is_reported_and_never_raised(data: dict[str, Any]) -> None:
    found = parse({"schema": 1, **data}, "/nowhere/compat.toml")
    assert found.entries == {}
    assert all(problem.remedy for problem in found.problems)


@pytest.mark.parametrize(
    ("specifier", "says"),
    [("two", "not a PEP 440 range"), (">=5,<4.dev0", "no version lies"), (">=4,<5", "fall on neither side")],
)
def test_a_broken_range_is_reported(world: World, specifier: str, says: str) -> None:
    world.patch("m", f'{{ torch = "{specifier}" }}')
    (problem,) = ranges(world.catalog())
    assert says in problem.what
    assert "requires.torch" in problem.where


def test_our_own_catalog_is_sound() -> None:
    ours = read(default_path())
    assert ours.problems == ()
    assert ranges(ours) == []
    data = tomllib.loads(Path(ours.path).read_text())
    assert len(ours.entries) == len(data["patch"])


def test_every_patch_file_is_in_our_catalog() -> None:
    ours = read(default_path())
    files = {
        f"{path.parent.name}.{path.stem}"
        for path in (Path(ours.path).parent / "patches").glob("[a-z]*/[a-z]*.py")
    }
    assert files == {entry.module for entry in ours.entries.values()}
