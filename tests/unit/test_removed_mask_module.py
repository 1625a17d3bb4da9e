"""Who is given ``transformers.modeling_attn_mask_utils`` where transformers has none, and who is not."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import vlmpatch  # noqa: F401  (makes vlmpatch.patches importable in a checkout)
from vlmpatch.api import Patch
from vlmpatch.gate.source import Unrecognised, of_file
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.transformers.removed_mask_module")
NAME = "transformers.modeling_attn_mask_utils"
TAKEN = f"from {NAME} import _prepare_4d_attention_mask as masks, AttentionMaskConverter\n"
GUARDED = {
    "by name": f"try:\n    {TAKEN}except ImportError:\n    masks = None\n",
    "by its kind": f"try:\n    {TAKEN}except (KeyError, ModuleNotFoundError) as error:\n    masks = None\n",
    "by everything": f"try:\n    {TAKEN}except:\n    masks = None\n",
    "suppressed": f"import contextlib\nmasks = None\nwith contextlib.suppress(ImportError):\n    {TAKEN}",
    "asked first": f"import importlib.util\nmasks = importlib.util.find_spec('{NAME}')\n",
    "by its caller": "try:\n    from .taking import masks\nexcept ImportError:\n    masks = None\n",
    "in a function": f"def take():\n    {TAKEN}try:\n    take()\nexcept ImportError:\n    masks = None\n",
}


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of remote code beside a transformers without the module."""
    before = set(sys.modules)
    folder = tmp_path / "transformers_modules" / "model"
    for package in (tmp_path / "transformers", folder):
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    (tmp_path / "transformers_modules" / "__init__.py").touch()
    (folder / "taking.py").write_text(TAKEN)
    (tmp_path / "transformers" / "dynamic_module_utils.py").write_text("def get_class_in_module(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("transformers", "transformers_modules", "program"):
            del sys.modules[name]


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = Journal()
    patch.apply(Patch("removed-mask-module", made), ModuleType("transformers.dynamic_module_utils"))
    yield made
    made.rollback(["removed-mask-module"])


def imported(folder: Path, source: str) -> Any:
    (folder / "code.py").write_text(source)
    importlib.invalidate_caches()
    return importlib.import_module("transformers_modules.model.code")


def nobody_sees_it() -> bool:
    parent, _, child = NAME.partition(".")
    hidden = NAME not in sys.modules and not hasattr(importlib.import_module(parent), child)
    return hidden and importlib.util.find_spec(NAME) is None


def test_remote_code_gets_it_and_nobody_else_sees_it(remote: Path, journal: Journal) -> None:
    code = imported(remote, TAKEN)
    assert callable(code.masks)
    assert isinstance(code.AttentionMaskConverter, type)
    assert nobody_sees_it()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    with pytest.raises(ModuleNotFoundError):
        exec(TAKEN, {"__name__": "__main__"})


def test_every_module_that_asks_gets_it(remote: Path, journal: Journal) -> None:
    first = imported(remote, TAKEN)
    second = importlib.import_module("transformers_modules.model.taking")
    assert first.masks is second.masks
    assert pickle.loads(pickle.dumps(first.masks)) is first.masks


def test_one_that_asks_when_it_runs_gets_it(remote: Path, journal: Journal) -> None:
    code = imported(remote, f"def take():\n    {TAKEN}    return masks\n")
    assert nobody_sees_it()
    assert callable(code.take())
    assert nobody_sees_it()


def test_a_name_that_was_never_there_is_not_made_up(remote: Path, journal: Journal) -> None:
    with pytest.raises(ImportError, match="cannot import name 'other'"):
        imported(remote, f"from {NAME} import other\n")
    assert nobody_sees_it()


@pytest.mark.parametrize("kind", GUARDED)
def test_code_that_is_prepared_sees_what_it_saw(kind: str, remote: Path, journal: Journal) -> None:
    assert imported(remote, GUARDED[kind]).masks is None
    assert nobody_sees_it()


def test_a_handler_elsewhere_prepares_for_nothing(remote: Path, journal: Journal) -> None:
    source = f"try:\n    import math\nexcept ImportError:\n    math = None\n{TAKEN}"
    assert callable(imported(remote, source).masks)
    other = "try:\n    from .taking import masks\nexcept ValueError:\n    masks = None\n"
    (remote / "other.py").write_text(other)
    importlib.invalidate_caches()
    assert callable(importlib.import_module("transformers_modules.model.other").masks)


def test_another_program_s_module_gets_nothing(remote: Path, journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TAKEN)
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match="modeling_attn_mask_utils"):
        importlib.import_module("program")


def test_one_that_is_there_is_taken(remote: Path, journal: Journal, tmp_path: Path) -> None:
    there = "_prepare_4d_attention_mask = AttentionMaskConverter = 'theirs'\n"
    path = tmp_path / "transformers" / "modeling_attn_mask_utils.py"
    path.write_text(there)
    assert imported(remote, TAKEN).masks == "theirs"
    assert NAME in sys.modules


def test_undo_takes_it_away_and_redo_brings_it_back(remote: Path, journal: Journal) -> None:
    found = len(sys.meta_path)
    journal.suspend("removed-mask-module")
    assert len(sys.meta_path) == found - 1
    with pytest.raises(ModuleNotFoundError):
        imported(remote, TAKEN)
    journal.resume("removed-mask-module")
    assert callable(imported(remote, TAKEN).masks)
    journal.rollback(["removed-mask-module"])
    assert len(sys.meta_path) == found - 1


def test_to_apply_it_twice_changes_nothing(remote: Path) -> None:
    made = Journal()
    handle, found = Patch("removed-mask-module", made), len(sys.meta_path)
    for _ in range(2):
        patch.apply(handle, ModuleType("transformers.dynamic_module_utils"))
    assert len(sys.meta_path) == found + 1
    made.rollback(["removed-mask-module"])
    assert len(sys.meta_path) == found


def test_the_look_asks_for_the_file(remote: Path, tmp_path: Path) -> None:
    target = tmp_path / "transformers" / "dynamic_module_utils.py"
    assert patch.look(of_file("transformers.dynamic_module_utils", str(target))) is None
    (target.parent / "modeling_attn_mask_utils.py").touch()
    found = patch.look(of_file("transformers.dynamic_module_utils", str(target)))
    assert found == f"this release has {NAME}"
    (target.parent / "other.py").write_text("x = 1\n")
    with pytest.raises(Unrecognised):
        patch.look(of_file("other", str(target.parent / "other.py")))
