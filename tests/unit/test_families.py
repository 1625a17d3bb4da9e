"""Each family is a file that makes it; an edit of that file or a shared one makes its checkpoint anew."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest

from tests import families
from tests.lab import envs, launch

STACK = envs.read_stacks()["tf457-ds0182"]


@pytest.mark.parametrize("name", families.names())
def test_each_file_makes_its_family(name: str) -> None:
    module = importlib.import_module(f"tests.families.{name}")
    assert callable(module.make)
    assert Path(module.__file__ or "") in families.recipe(name)


@pytest.mark.parametrize(
    ("edited", "anew"),
    [
        ("llava.py", {"llava"}),
        ("timm_repo/modeling_tiny_timm.py", {"timm_repo"}),
        ("_shared/batches.py", {"llava", "gemma3", "timm_repo"}),
    ],
)
def test_what_an_edit_makes_anew(
    edited: str, anew: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = shutil.copytree(families.HERE, tmp_path / "families")
    monkeypatch.setattr(families, "HERE", copy)
    kinds = ("llava", "gemma3", "timm_repo")
    before = {kind: launch._checkpoint_folder(STACK, kind) for kind in kinds}
    with (copy / edited).open("a") as file:
        file.write("# edited\n")
    assert {kind for kind in kinds if launch._checkpoint_folder(STACK, kind) != before[kind]} == anew
