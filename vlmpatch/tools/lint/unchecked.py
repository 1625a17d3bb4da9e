"""A recomputation that is not compared with its forward: ``determinism_check="none"`` in a program."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence

from vlmpatch.tools.lint.modules import Module

NAME = "determinism_check"


def unchecked(modules: Sequence[Module]) -> str | None:
    """The first place that says so, as ``file:line``; it is an item of a mapping, or an argument."""
    for module in modules:
        if NAME in module.text:
            for value in _values(module.tree):
                if isinstance(value, ast.Constant) and value.value == "none":
                    return f"{os.path.basename(module.path)}:{value.lineno}"
    return None


def _values(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == NAME:
            yield node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == NAME:
                    yield value
