"""``cases/``: a broken case names itself and spares the others, as a broken file does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.matrix import rows
from tests.standin.cells import Cell as Script
from vlmpatch.catalog.location import default_path, upstreams
from vlmpatch.catalog.model import Catalog, Problem
from vlmpatch.catalog.read import read as read_catalog
from vlmpatch.tools import cases
from vlmpatch.tools.cases import Case

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CATALOG = read_catalog(default_path())
PATCH = CATALOG.entries["zero3-delegating-modules"]
SOUND = """
[[case]]
id = "one"
order = 20
patch = "zero3-delegating-modules"
cell = { engine = "zero3", zero = { overlap_comm = true } }
fails = "error: ds_grads_remaining"
where = { deepspeed = "<0.19" }
without = ["vision-input-grads"]
proof = ["tf457-ds0182"]
hidden_by = ["input-grads-leaf"]
en = "ZeRO-3"

[[case]]
id = "two"
order = 10
patch = "zero3-saved-whole"
outside = "saved"
fails = "error"
proof = ["tf457-ds0182"]
"""


def read(folder: Path, **files: str) -> cases.Cases:
    (folder / "cases").mkdir()
    for name, text in files.items():
        (folder / "cases" / f"{name}.toml").write_text(text)
    return cases.read(CATALOG._replace(path=str(folder / "compat.toml")))


def test_ours_are_sound_and_each_upstream_has_a_file() -> None:
    known = cases.read(CATALOG)
    assert known.problems == ()
    folders = upstreams(str(Path(default_path()).with_name("patches")))
    assert {case.upstream for case in known.known.values()} == {name for name in folders if name[0] != "_"}
    assert all(Script.of(case.settings) for case in known.known.values() if case.how == "script")
    assert all(case.id in known.known for case in rows.read().values())


def test_what_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, deepspeed=SOUND)
    assert found.problems == ()
    assert list(found.known) == ["two", "one"]  # by their order
    one, two = found.known["one"], found.known["two"]
    assert (one.how, one.cell.engine, one.cell.zero) == ("cell", "zero3", {"overlap_comm": True})
    assert (one.upstream, one.failures, one.matrix) == ("deepspeed", PATCH.failures, True)
    assert (one.zh, one.untranslated) == ("ZeRO-3", True)
    assert (two.how, two.scenario, two.matrix, two.untranslated) == ("outside", "saved", False, False)


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ('id = "one"', 'id = "One"', "id", "not in kebab-case"),
        ('id = "one"', "", "id", "not in kebab-case"),
        ("order = 20", 'order = "x"', "order", "is no number"),
        ("order = 20", "order = 20\ncolour = 1", "colour", "unknown key"),
        ("order = 20", "failures = [1]", "failures", "not a list of strings"),
        ("order = 20", 'order = 20\nscript = { engine = "ddp" }', "cell", "cell, script are given together"),
        ('patch = "zero3-delegating-modules"', 'patch = "nosuch"', "patch", "there is no patch 'nosuch'"),
        ('patch = "zero3-delegating-modules"', "", "patch", "is missing"),
        ('"vision-input-grads"', '"nosuch"', "without", "there is no patch 'nosuch'"),
        ('"input-grads-leaf"', '"nosuch"', "hidden_by", "there is no patch 'nosuch'"),
        ('engine = "zero3"', 'engine = "zero9"', "cell", "engine = 'zero9': not one of"),
        ('engine = "zero3"', "engine = 3", "cell.engine", "is int, not str"),
        ('engine = "zero3"', "motor = 3", "cell.motor", "is no field of a cell"),
        ("cell = {", "nothing = {", "nothing", "unknown key"),
        ("cell = { engine", "# cell = { engine", "cell", "nothing says what runs"),
        ('{ engine = "zero3", zero = { overlap_comm = true } }', "3", "cell", "is not a table"),
        ('fails = "error: ds_grads_remaining"', "", "fails", "is missing"),
        ("error: ds_grads_remaining", "boom", "fails", "'boom' is no ending"),
        ("error: ds_grads_remaining", "error: (", "fails", "is no regular expression"),
        ('"<0.19"', '"before"', "where.deepspeed", "'before' is no range of versions"),
        ('"<0.19"', "0.19", "where", "is not a table of strings"),
        ('proof = ["tf457-ds0182"]\nhidden', "hidden", "hidden_by", "is for a proof"),
        ('en = "ZeRO-3"', "", "en", "is missing"),
        ('en = "ZeRO-3"', 'matrix = "no"', "matrix", "is str, not a boolean"),
        ('outside = "saved"', 'outside = ""', "outside", "is empty"),
        ('outside = "saved"', 'outside = "saved"\nmatrix = true', "matrix", "the matrix runs no outside"),
        ('fails = "error"\nproof = ["tf457-ds0182"]', 'fails = "error"', "proof", "is missing"),
    ],
)
def test_a_broken_case_names_itself_and_spares_the_others(
    old: str, new: str, key: str, says: str, tmp_path: Path
) -> None:
    assert old in SOUND
    found = read(tmp_path, deepspeed=SOUND.replace(old, new, 1))
    (problem,) = found.problems
    assert len(found.known) == 1
    assert problem.where.startswith(f"{tmp_path / 'cases' / 'deepspeed.toml'}, case ")
    assert problem.where.endswith(f", {key}")
    assert says in problem.what
    assert problem.remedy


def test_a_broken_file_spares_the_others(tmp_path: Path) -> None:
    found = read(tmp_path, deepspeed=SOUND, peft="[[case]\n", torch="case = 1\nother = 2", trl="case = [3]")
    assert set(found.known) == {"one", "two"}
    wheres = [problem.where.rpartition("/")[2] for problem in found.problems]
    assert wheres == ["peft.toml", "torch.toml, other", "torch.toml, case", "trl.toml, case number 1, case"]


def test_an_id_is_given_once(tmp_path: Path) -> None:
    found = read(tmp_path, deepspeed=SOUND, peft=SOUND.replace('"two"', '"three"'))
    assert set(found.known) == {"one", "two", "three"}
    (problem,) = found.problems
    assert problem.where.endswith("peft.toml, case 'one', id")


def test_no_folder(tmp_path: Path) -> None:
    (problem,) = cases.read(CATALOG._replace(path=str(tmp_path / "compat.toml"))).problems
    assert "cannot be read" in problem.what


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [*tomllib.loads(SOUND)["case"][0], *cases.RUNS, "lacking", "ends", "matrix", "says", "x"]
)


def parsed(data: dict[str, Any], catalog: Catalog = CATALOG) -> tuple[list[Case], list[Problem]]:
    problems: list[Problem] = []
    return cases.parse(data, "cases/deepspeed.toml", catalog, problems), problems


@given(st.dictionaries(KEYS, values), st.sets(st.sampled_from(["cell", "patch", "en", "proof"])))
def test_any_case_is_read_or_refused(changed: dict[str, Any], dropped: set[str]) -> None:
    table = {k: v for k, v in tomllib.loads(SOUND)["case"][0].items() if k not in dropped} | changed
    found, problems = parsed({"case": [table]})
    assert len(found) + len(problems) == 1
    assert all(problem.remedy for problem in problems)


@given(st.dictionaries(st.sampled_from(["case", "x"]), values))
def test_any_file_is_read_or_refused(data: dict[str, Any]) -> None:
    found, problems = parsed(data)
    assert found == []
    assert bool(problems) == bool(data and data != {"case": []})
