"""Names a module relied on a star import for, and no longer gets from it."""

from __future__ import annotations

import ast
import builtins
import typing
from typing import Any


def lost_typing_names(tree: ast.Module, star_imported: str, provided: set[str]) -> dict[str, Any]:
    """The ``typing`` names a module uses, does not bind, and star-imports from a module without them.

    Args:
        tree: of the module that does ``from <star_imported> import *``.
        star_imported: full name of the module it imports from.
        provided: what that module offers today.
    """
    if star_imported not in star_imports(tree):
        return {}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and _is_store(node)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
    lost = used - bound - provided - set(dir(builtins))
    return {name: getattr(typing, name) for name in sorted(lost) if name in typing.__all__}


def star_imports(tree: ast.Module) -> set[str | None]:
    """The modules that a module takes everything from."""
    return {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and _is_star(node)}


def _is_star(node: ast.ImportFrom) -> bool:
    return any(alias.name == "*" for alias in node.names)


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)
