"""What a patch's digest sees: every file of patches/ that it uses, and not where they lie."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.matrix import store
from vlmpatch.lockfile.revision import Revisions

PATCHES = store.ROOT / "patches"
MODULES = sorted(entry.module for entry in store.entries().entries.values())
# Which files of patches/ an import of each module makes Python run, as Python has it.
LOADED = """
import importlib, json, sys
loaded, within = {}, "vlmpatch.patches."
for name in sys.argv[1:]:
    for module in [module for module in sys.modules if module.startswith(within)]:
        del sys.modules[module]
    importlib.import_module(within + name)
    found = {module.partition(within)[2] for module in sys.modules if module.startswith(within)}
    loaded[name] = sorted(module for module in found - {name} if "." in module)
print(json.dumps(loaded))
"""


@functools.cache
def loaded() -> dict[str, list[str]]:
    """By patch module, the helpers that are imported with it."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *MODULES], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def helpers() -> list[str]:
    return sorted({helper for used in loaded().values() for helper in used})


def digests(patches: Path) -> dict[str, str]:
    revisions = Revisions(str(patches))
    return {module: revisions.of(module) for module in MODULES}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PATCHES, tmp_path / "patches"))


def file_of(patches: Path, module: str) -> Path:
    return patches.joinpath(*module.split(".")).with_suffix(".py")


def test_what_python_loads_is_what_a_patch_is_said_to_use() -> None:
    revisions = Revisions(str(PATCHES))
    assert len(helpers()) > 5
    assert {module: sorted(revisions.used_by(module)) for module in MODULES} == loaded()


def test_an_edit_of_a_helper_changes_its_users_and_no_other(copy: Path) -> None:
    before = digests(copy)
    for helper in helpers():
        file = file_of(copy, helper)
        text = file.read_text(encoding="utf-8")
        file.write_text(text + "\nEDITED = True\n", encoding="utf-8")
        after = digests(copy)
        file.write_text(text, encoding="utf-8")
        changed = {module for module in MODULES if after[module] != before[module]}
        assert changed == {m for m in MODULES if helper in loaded()[m]}, helper


def test_comments_and_docstrings_change_nothing(copy: Path) -> None:
    before = digests(copy)
    for file in copy.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('"""', '"""Other words. ', 1) + "# a comment\n", encoding="utf-8")
    assert digests(copy) == before


def test_a_move_of_every_helper_changes_nothing(copy: Path) -> None:
    """As a refactoring does it: the file is renamed, and its users' import lines say so."""
    before = digests(copy)
    moved = {name: f"elsewhere.{name.partition('.')[2].lstrip('_')}_moved" for name in helpers()}
    (copy / "elsewhere").mkdir()
    for old, new in moved.items():
        file_of(copy, old).rename(file_of(copy, new))
    known = {old.rpartition(".")[2]: new for old, new in moved.items()}
    assert len(known) == len(moved)
    for file in copy.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for name, new in known.items():
            line = rf"^from \.[\w.]*\b{name} import"
            text = re.sub(line, f"from vlmpatch.patches.{new} import", text, flags=re.M)
        file.write_text(text, encoding="utf-8")
    assert digests(copy) == before
    file_of(copy, moved[min(moved)]).write_text("", encoding="utf-8")
    assert digests(copy) != before


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A patch ``one.patch`` and the helpers ``one._near``, ``two._far`` and ``two._beyond``."""
    for name in ("one.patch", "one._near", "two._far", "two._beyond"):
        file_of(tmp_path, name).parent.mkdir(exist_ok=True)
        file_of(tmp_path, name).write_text(f"value = {name!r}\n", encoding="utf-8")
    file_of(tmp_path, "two._far").write_text("from . import _beyond\nvalue = _beyond.value\n")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("from ._near import value", {"one._near"}),
        ("from . import _near", {"one._near"}),
        ("from ..two._far import value", {"two._far", "two._beyond"}),
        ("from ..two import _far as helper", {"two._far", "two._beyond"}),
        ("from ...patches.two._beyond import value", {"two._beyond"}),
        ("from vlmpatch.patches.two._beyond import value", {"two._beyond"}),
        ("from vlmpatch.patches.two import _beyond", {"two._beyond"}),
        ("import vlmpatch.patches.two._far as helper", {"two._far", "two._beyond"}),
        ("import os, vlmpatch.patches.two._beyond", {"two._beyond"}),
        ("def f():\n    from ..two._beyond import value\n    return value", {"two._beyond"}),
        ("from ._near import (\n    value,\n); x = 'é'", {"one._near"}),
        ("from vlmpatch.api import Code", set()),
        ("from ...api import Code", set()),
        ("import os", set()),
    ],
)
def test_every_way_to_import(made: Path, line: str, used: set[str]) -> None:
    file_of(made, "one.patch").write_text(f"{line}\n", encoding="utf-8")
    before = Revisions(str(made)).of("one.patch")
    assert Revisions(str(made)).used_by("one.patch") == used
    for helper in ("one._near", "two._far", "two._beyond"):
        file = file_of(made, helper)
        text = file.read_text(encoding="utf-8")
        file.write_text(f"{text}more = 1\n", encoding="utf-8")
        assert (Revisions(str(made)).of("one.patch") != before) == (helper in used)
        file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from ._near import value", "from ._near import value as v"),
        ("from ._near import value", "from ._near import other"),
        ("from ._near import value", "from ..two._far import value"),
        ("from ._near import value\nimport os", "from ._near import value\nimport sys"),
        ("from ...api import Code", "from ...code import Code"),
        ("import os, vlmpatch.patches.one._near", "import sys, vlmpatch.patches.one._near"),
        ("if value:\n    a()\n    b()", "if value:\n    a()\nb()"),
        ("from ._near import a\nfrom ..two._far import b", "from ._near import b\nfrom ..two._far import a"),
    ],
)
def test_what_does_something_else_has_another_digest(made: Path, before: str, after: str) -> None:
    found = set()
    for text in (before, after):
        file_of(made, "one.patch").write_text(f"{text}\n", encoding="utf-8")
        found.add(Revisions(str(made)).of("one.patch"))
    assert len(found) == 2


@pytest.mark.parametrize(
    "after",
    [
        "import os\nfrom ..two._beyond import value\nfrom ._near import value as near\nprint(value)",
        "import os\n\nfrom ._near import value as near\n"
        "from vlmpatch.patches.two._beyond import value\n\n\nprint(value)  # it",
    ],
)
def test_the_order_of_imports_does_not_count(made: Path, after: str) -> None:
    text = "import os\nfrom ._near import value as near\nfrom ..two._beyond import value\nprint(value)\n"
    file_of(made, "one.patch").write_text(text, encoding="utf-8")
    before = Revisions(str(made)).of("one.patch")
    file_of(made, "one.patch").write_text(after, encoding="utf-8")
    assert Revisions(str(made)).of("one.patch") == before


def test_a_circle_ends_and_is_followed(made: Path) -> None:
    file_of(made, "one.patch").write_text("from ..two._far import value\n")
    file_of(made, "two._beyond").write_text("from ._far import value\n")
    before = Revisions(str(made)).of("one.patch")
    file_of(made, "two._beyond").write_text("from ._far import value\nvalue = 2\n")
    assert Revisions(str(made)).of("one.patch") != before


def test_a_helper_that_is_not_there_is_said(made: Path) -> None:
    file_of(made, "one.patch").write_text("from ._gone import value\n")
    with pytest.raises(FileNotFoundError, match="_gone"):
        Revisions(str(made)).of("one.patch")
