"""``tests.new`` lays out a patch, and ``tests.complete`` says all that is missing of one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import complete, new
from vlmpatch.catalog.read import read

TOPS = ("patches", "failures", "cases", "changelog.d")
PATCH = "patches/peft/my_fix.py"
# What is to be written of a new patch for a new failure, in the order to go by.
TO_FILL_IN = {
    "failures/F": ["title", "see", "where", "cause", "advice", "symptoms"],
    "cases/peft.toml": ["cell", "fails", "proof", "en"],
    PATCH: 10,
    "compat.toml": ["severity", "summary", "targets", "requires", "upstream"],
    "changelog.d/my-fix.added.md": 1,
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in TOPS:
        shutil.copytree(complete.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("compat.toml", "CHANGELOG.md"):
        shutil.copy(complete.ROOT / name, tmp_path)
    return tmp_path


def test_a_patch_laid_out_lacks_what_is_to_be_filled_in_and_nothing_else(copy: Path) -> None:
    new.lay_out(copy, "peft", "my-fix", "new")
    lacks = complete.missing(copy)
    for file, keys in TO_FILL_IN.items():
        own = [lack for lack in lacks if lack.file.startswith(file)]
        assert [lack.key for lack in own] == keys or len(own) == keys, file
        lacks = lacks[len(own) :]
    assert lacks == []


def test_a_known_failure_is_named_and_not_made(copy: Path) -> None:
    before = set(copy.glob("failures/*"))
    new.lay_out(copy, "swift", "my-fix", "f04")
    assert set(copy.glob("failures/*")) == before
    text = (copy / "compat.toml").read_text()
    assert 'id = "my-fix"\nfailures = ["F4"]\n' in text
    assert "requires = { ms-swift = " in text


def test_the_first_patch_of_a_project(copy: Path) -> None:
    (copy / "patches" / "fakelib").mkdir()
    (copy / "patches" / "fakelib" / "__init__.py").write_text('"""Patches for fakelib."""\n')
    new.lay_out(copy, "fakelib", "my-fix", "F4")
    assert (copy / "cases" / "fakelib.toml").read_text().startswith("# fakelib.\n")
    last = (copy / "compat.toml").read_text().rpartition("[[patch]]")[2]
    assert 'id = "my-fix"' in last
    assert "requires = { fakelib = " in last
    assert {lack.file.partition(":")[0] for lack in complete.missing(copy)} == {
        *("compat.toml", "cases/fakelib.toml", "patches/fakelib/my_fix.py", "changelog.d/my-fix.added.md")
    }


@pytest.mark.parametrize("upstream", ["torch", "trl", "minicpmv", "axolotl", "transformers"])
def test_what_was_there_stays_as_it_was(upstream: str, copy: Path) -> None:
    before = {path: path.read_text() for path in (copy / "compat.toml", copy / "cases" / f"{upstream}.toml")}
    new.lay_out(copy, upstream, "my-fix", "F4")
    for path, text in before.items():
        after = path.read_text()
        start = after.index(
            '[[patch]]\nid = "my-fix"' if path.stem == "compat" else '[[case]]\nid = "my-fix"'
        )
        end = after.find("\n\n", start)
        rest = after[end:].lstrip() if end > 0 else ""
        assert f"{after[:start].rstrip()}\n\n{rest}".strip() == text.strip()
    assert len(read(str(copy / "compat.toml")).problems) == 1


@pytest.mark.parametrize(
    ("upstream", "id_", "failure", "says"),
    [
        ("nosuch", "my-fix", "F4", "there is no patches/nosuch/; known: accelerate, "),
        ("_shared", "my-fix", "F4", "there is no patches/_shared/"),
        ("peft", "My_Fix", "F4", "'My_Fix' is no id"),
        ("peft", "../evil", "F4", "is no id"),
        ("peft", "4-bit", "F4", "is no id"),
        ("peft", "input-grads-leaf", "F4", "is taken: patches/"),
        ("peft", "causal-task", "F4", "taken: cases/peft.toml has it"),
        ("peft", "my-fix", "F999", "there is no failure F999"),
        ("peft", "my-fix", "disk", "there is no failure disk"),
    ],
)
def test_bad_input_is_refused_and_writes_nothing(
    upstream: str, id_: str, failure: str, says: str, copy: Path
) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(new.Refused, match=says.replace("(", r"\(")):
        new.lay_out(copy, upstream, id_, failure)
    after = {
        path: path.read_bytes() for path in copy.rglob("*") if path.is_file() and path.suffix != ".index"
    }
    assert {path: text for path, text in after.items() if path in before} == before


FILE, ENTRY, CASE = "patches/peft/peft_generation_inputs.py", "compat.toml", "cases/peft.toml"
OWN = 'patch = "peft-generation-inputs"\n'
ABSENT = [
    (FILE, "def look", "def looks", "look: there is no such function"),
    (FILE, "def look", "def", "file: is no Python"),
    (FILE, "Why:", "", "docstring: why it happens"),
    ("patches/peft/prefix_under_checkpointing.py", "https://", "", "docstring: upstream's issue"),
    ("failures/F09.toml", "title =", "titel =", "F09.toml: file: titel is an unknown key"),
    ("failures/F09.toml", 'id = "F9"', 'id = "F999"', "F09.toml: file: id is 'F999'"),
    (ENTRY, '{ peft = ">=0.5", ', '{ peft = "new", ', "requires.peft: 'new' is not a PEP 440 range"),
    (
        ENTRY,
        '\nid = "peft-generation-inputs"',
        '\nid = "other"',
        "a [[patch]] for patches/peft/peft_",
    ),
    (ENTRY, '\nfailures = ["F1", ', '\nfailures = ["F999", ', "failures/F999.toml: id: "),
    (CASE, OWN, 'patch = "nosuch"\n', "there is no patch 'nosuch'"),
    (CASE, OWN, 'patch = "adapter-renamed-keys"\n', 'a [[case]] with patch = "peft-generation-inputs"'),
    (CASE, 'proof = ["tf457-ds0182"]', 'proof = ["nosuch"]', "names nosuch, which is no stack"),
    (CASE, 'proof = ["tf457-ds0182"]', 'proof = ["tf445-ds0145"]', "where the gate is closed"),
    ("CHANGELOG.md", "`peft-generation-inputs`", "", "a paragraph for users that names `peft-gen"),
]


@pytest.mark.parametrize(("name", "old", "changed", "says"), ABSENT, ids=[case[-1] for case in ABSENT])
def test_each_thing_that_is_absent_is_said(name: str, old: str, changed: str, says: str, copy: Path) -> None:
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, changed, 1))
    assert says in complete.told(complete.missing(copy))


def test_a_file_of_patches_that_no_entry_names_is_said(copy: Path) -> None:
    (copy / "patches/peft/extra.py").write_text("")
    told = complete.told(complete.missing(copy))
    assert "compat.toml: id: a [[patch]] for patches/peft/extra.py, called extra" in told
    assert "patches/peft/extra.py: apply: there is no such function" in told
