"""Which way the imports of patches/ lead: from a patch to ``_shared`` and ``vlmpatch.api``, never across."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

from tests.matrix import store
from vlmpatch.lockfile.revision import Revisions

PATCHES = store.ROOT / "patches"
WITHIN = "vlmpatch.patches."
SHARED = f"{WITHIN}_shared."
FACE = {"vlmpatch", "vlmpatch.api"}  # what users may call, what patches may use
MODULES = sorted(entry.module for entry in store.entries().entries.values())
# An idea of its own, with tests of its own, too long to stand in the file of the one patch that uses it.
OF_ONE_PATCH = {
    "_shared.all_or_none",
    "_shared.attention_masks",
    "_shared.deadlock",
    "_shared.model_wrappers",
    "_shared.told_calls",
}


def imported(tree: ast.AST, module: str) -> Iterator[str]:
    """The full names of the modules that ``module`` imports anywhere beneath ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
            inside = base in (WITHIN[:-1], SHARED[:-1], "vlmpatch") or is_upstream(base)
            yield from (f"{base}.{alias.name}" for alias in node.names) if inside else (base,)


def is_upstream(name: str) -> bool:
    return name.startswith(WITHIN) and name.count(".") == WITHIN.count(".")


def at_the_top(tree: ast.Module, module: str) -> set[str]:
    """What is imported as soon as the module is."""
    lazy = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, field, None), list):
                setattr(node, field, [child for child in statements if not isinstance(child, lazy)])
    return set(imported(tree, module))


def faults(module: str, source: str) -> list[str]:
    """What module ``module`` (``vlmpatch.patches.torch.x``) imports and must not."""
    own = {name for name in imported(ast.parse(source), module) if name.partition(".")[0] == "vlmpatch"}
    across = {name for name in own - FACE if not name.startswith(SHARED)}
    tops = {name.partition(".")[0] for name in at_the_top(ast.parse(source), module)}
    eager = tops - sys.stdlib_module_names - {"vlmpatch"}
    return [f"{module} imports {name}" for name in sorted(across)] + [
        f"{module} imports {name} before a function needs it" for name in sorted(eager)
    ]


def sources() -> dict[str, str]:
    """Every file of patches/ by the name of its module."""
    return {
        WITHIN + ".".join(path.relative_to(PATCHES).with_suffix("").parts): path.read_text("utf-8")
        for path in PATCHES.rglob("*.py")
    }


def shared() -> set[str]:
    return {f"_shared.{path.stem}" for path in Path(PATCHES, "_shared").glob("*.py")} - {"_shared.__init__"}


def test_patches_import_nothing_from_each_other() -> None:
    read = sources()
    assert len(read) > len(MODULES)
    assert [fault for module, source in read.items() for fault in faults(module, source)] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from .other import f", "imports vlmpatch.patches.torch.other"),
        ("from . import other", "imports vlmpatch.patches.torch.other"),
        ("from ..peft.other import f", "imports vlmpatch.patches.peft.other"),
        ("def f():\n    from ..peft import other", "imports vlmpatch.patches.peft.other"),
        ("import vlmpatch.patches.peft.other as o", "imports vlmpatch.patches.peft.other"),
        ("from vlmpatch.journal import Journal", "imports vlmpatch.journal"),
        ("from vlmpatch import journal", "imports vlmpatch.journal"),
        ("from ...engine import Engine", "imports vlmpatch.engine"),
        ("import torch.nn", "imports torch before a function needs it"),
        ("try:\n    from torch import nn\nexcept ImportError:\n    nn = None", "imports torch before"),
        ("class A:\n    import torch", "imports torch before"),
        ("from .._shared.distributed import rank\nfrom vlmpatch.api import Code\nimport vlmpatch, os", ""),
        ("from .._shared import distributed\nclass A:\n    def f(self):\n        import torch", ""),
    ],
)
def test_what_leads_across_is_found(source: str, found: str) -> None:
    said = faults(f"{WITHIN}torch.x", source)
    assert [found in fault for fault in said] == ([True] if found else [])


def test_a_folder_of_an_upstream_holds_patches_and_nothing_else() -> None:
    files = {".".join(path.relative_to(PATCHES).with_suffix("").parts) for path in PATCHES.glob("*/*.py")}
    packages = {name for name in files if name.endswith(".__init__")}
    assert files - packages - shared() == set(MODULES)
    for name in packages:
        (statement,) = ast.parse(sources()[WITHIN + name]).body
        assert isinstance(statement, ast.Expr), name


def test_shared_files_do_not_import_each_other_in_a_circle() -> None:
    read = sources()
    graph = {
        f"vlmpatch.patches.{name}": {
            used
            for used in imported(ast.parse(read[f"vlmpatch.patches.{name}"]), f"vlmpatch.patches.{name}")
            if used.startswith(SHARED)
        }
        for name in shared()
    }
    assert any(graph.values())
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


def test_what_is_shared_is_shared() -> None:
    """What one patch alone uses belongs into its file."""
    revisions = Revisions(str(PATCHES))
    users = Counter(used for module in MODULES for used in revisions.used_by(module))
    assert {name for name in shared() if users[name] < 2} == OF_ONE_PATCH
    assert all(users[name] == 1 for name in OF_ONE_PATCH)


def reads_annotations(source: str) -> bool:
    """Whether it names what evaluates annotations from Python 3.14 on."""
    readers = {
        "inspect.signature",
        "inspect.getfullargspec",
        "typing.get_type_hints",
        "inspect.get_annotations",
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in readers:
            return True
        if isinstance(node, ast.ImportFrom) and readers & {
            f"{node.module}.{each.name}" for each in node.names
        }:
            return True
    return False


def test_a_signature_is_read_in_one_way() -> None:
    """``vlmpatch.api.signature`` is that way."""
    files = [*Path(store.ROOT, "vlmpatch").rglob("*.py"), *PATCHES.rglob("*.py")]
    found = [path.name for path in files if reads_annotations(path.read_text("utf-8"))]
    assert found == ["signature.py"]
    assert reads_annotations("from inspect import Parameter, signature")
