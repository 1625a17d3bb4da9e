"""Which package may import which: the arrows of the house, and that none of them run in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read

CHECKOUT = Path(__file__).resolve().parents[2]

# The one list of allowed arrows: a package of vlmpatch/, and those that its files may import beside its own.
# `vlmpatch` is the package's own file, of which anybody may ask the version.
ARROWS = {
    "vlmpatch": {"bootstrap", "catalog", "engine"},
    "bootstrap": {"catalog", "engine", "watch"},
    "api": {"gate", "journal", "support"},
    "catalog": set[str](),
    "support": set[str](),
    "gate": {"catalog"},
    "imports": {"catalog", "journal", "support"},
    "journal": {"support"},
    "lockfile": {"gate", "support"},
    "watch": {"catalog", "gate", "imports", "journal", "lockfile", "support", "vlmpatch"},
    "engine": {"api", "catalog", "gate", "imports", "journal", "lockfile", "support", "vlmpatch", "watch"},
    "tools": {"catalog", "engine", "gate", "lab", "lockfile", "support", "vlmpatch", "watch"},
    "__main__": {"tools"},
    "inject": set[str](),
    "lab": {"vlmpatch"},  # a run with vlmpatch imports it as a script does; a bare one nothing of it
}


def files() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    tops = [CHECKOUT / top for top in ("vlmpatch", "vlmpatch_lab")]
    paths = [path.relative_to(CHECKOUT) for top in tops for path in top.rglob("*.py")]
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


MODULES = files()


def imported(path: Path) -> Iterator[str]:
    """The modules of the product that the file imports, wherever in it."""
    for node in ast.walk(ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            known = [name for name in inner if name in MODULES]
            yield from known
            if len(known) < len(inner):
                yield str(node.module)


def package(module: str) -> str:
    top, _, rest = module.partition(".")
    return "lab" if top == "vlmpatch_lab" else rest.partition(".")[0] or top


def test_every_arrow_between_packages_is_allowed() -> None:
    unknown = {package(module) for module in MODULES} - ARROWS.keys()
    forbidden = [
        f"{path} imports {target}"
        for module, path in MODULES.items()
        for target in imported(path)
        if package(target) not in {package(module), *ARROWS.get(package(module), ())}
    ]
    assert sorted([*unknown, *forbidden]) == []


def test_every_allowed_arrow_is_used() -> None:
    used = {(package(module), package(other)) for module, path in MODULES.items() for other in imported(path)}
    allowed = {(one, other) for one, others in ARROWS.items() for other in others}
    assert sorted(allowed - used) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    arrows = {module: set(imported(path)) - {module, "vlmpatch"} for module, path in MODULES.items()}
    while leaves := {module for module, targets in arrows.items() if not targets & arrows.keys()}:
        for module in leaves:
            del arrows[module]
    assert arrows == {}, "these lie on or before a circle"


def test_only_the_tools_name_a_patch() -> None:
    patches = read(default_path()).entries
    named = [
        f"{path} names {id_}"
        for module, path in MODULES.items()
        if package(module) != "tools"
        for id_ in patches
        if id_ in (CHECKOUT / path).read_text(encoding="utf-8")
    ]
    assert named == []
