"""What a script says of DeepSpeed's sequence parallelism: its group, and how its loss comes about."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vlmpatch.tools.lint.modules import Module

_REGISTER, _SIZE = "register_with_transformers", "sequence_parallel_size"
_GATHER, _FROM = "all_gather", "distributed.nn"  # the one whose backward sums over the ranks
_CALLED = ("sp_", "seq_parallel", "sequence_parallel")  # what names of a group's size have in them


class Sliced(NamedTuple):
    """The size of the group as it is written, and where; whether numbers of tokens are gathered, too."""

    size: str
    where: str
    weighed: bool


def sliced(modules: Sequence[Module]) -> Sliced | None:
    """Where rows are spread over ranks whose losses are gathered, and nothing divides by their number.

    Args:
        modules: the program, and what it imports.
    """
    gathers = [call for module in modules if _FROM in module.text for call in _calls(module, _GATHER)]
    if not gathers or any(_divides(module) for module in modules):
        return None
    for module in modules:
        for call in _calls(module, _REGISTER):
            size = next((each.value for each in call.keywords if each.arg == _SIZE), None)
            if size is not None and not (isinstance(size, ast.Constant) and size.value == 1):
                where = f"{os.path.basename(module.path)}:{call.lineno}"
                return Sliced(ast.unparse(size), where, weighed=len(gathers) > 1)
    return None


def _calls(module: Module, name: str) -> Iterator[ast.Call]:
    if name in module.text:
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", getattr(node.func, "id", "")) == name
            ):
                yield node


def _divides(module: Module) -> bool:
    """Whether something is divided by what is called as the size of a group is."""
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
            by = ast.unparse(node.right if isinstance(node, ast.BinOp) else node.value)
            if any(part in by for part in _CALLED):
                return True
    return False
