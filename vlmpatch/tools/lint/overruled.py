"""What a script chooses for a vision tower, and then once more, for the model that holds it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vlmpatch.tools.lint.modules import Module
from vlmpatch.tools.lint.unfrozen import Taken, bodies

_TOWER, _WHOLE = "visual", "model"


class Overruled(NamedTuple):
    """What holds the tower, and where it is chosen for."""

    part: str
    where: str


class _Choice(NamedTuple):
    """Whether ``path`` is to be trained, or nothing where that cannot be read."""

    path: tuple[str, ...]
    value: bool | None
    line: int


def overruled(modules: Sequence[Module], taken: Taken = lambda test: None) -> list[Overruled]:
    """Each ``model.model`` that is frozen or unfrozen after ``model.visual`` was, the other way.

    Args:
        modules: the program, and what it imports.
        taken: what a condition of the program comes to, where that is known.
    """
    found = []
    for module in modules:
        if f".{_TOWER}" not in module.text or "requires_grad" not in module.text:
            continue
        for body in bodies(module.tree):
            for choice in _again(list(_choices(body, taken))):
                where = f"{os.path.basename(module.path)}:{choice.line}"
                found.append(Overruled(".".join(choice.path), where))
    return found


def _again(choices: Sequence[_Choice]) -> Iterator[_Choice]:
    """The first choice for each model that overrules its tower's, and that no later one overrules."""
    seen = set[tuple[str, ...]]()
    for number, choice in enumerate(choices):
        *root, last = choice.path
        tower = [place for place, each in enumerate(choices) if _of_tower(each, root)]
        if last != _WHOLE or not root or choice.path in seen or not tower:
            continue
        told = {choices[place].value for place in tower if place < number}
        if told and tower[-1] < number and (None in told or told != {choice.value}):
            seen.add(choice.path)
            yield choice


def _of_tower(choice: _Choice, root: Sequence[str]) -> bool:
    return choice.path[: len(root) + 1] == (*root, _TOWER)


def _choices(body: Sequence[ast.stmt], taken: Taken, loop: str = "") -> Iterator[_Choice]:
    """In the order of the text, in the branches that may be taken; ``loop`` is what a loop goes over."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.If):
            known = taken(node.test)
            yield from _choices(node.body, taken, loop) if known is not False else ()
            yield from _choices(node.orelse, taken, loop) if known is not True else ()
        elif isinstance(node, ast.For):
            yield from _choices(node.body, taken, ast.unparse(node.iter))
        else:
            for name in ("body", "orelse", "finalbody"):
                yield from _choices(getattr(node, name, []), taken, loop)
            yield from _said(node, loop)


def _said(node: ast.stmt, loop: str) -> Iterator[_Choice]:
    if isinstance(node, ast.Assign) and loop:
        if any(getattr(target, "attr", "") == "requires_grad" for target in node.targets):
            yield _Choice(_path(loop), _constant(node.value), node.lineno)
        return
    call = node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    function = call.func if call else None
    if call and isinstance(function, ast.Attribute) and function.attr == "requires_grad_":
        value = _constant(call.args[0]) if call.args else True
        yield _Choice(_path(loop or ast.unparse(function.value)), value, node.lineno)


def _path(what: str) -> tuple[str, ...]:
    """``("model", "visual")`` of ``model.visual.named_parameters()``."""
    parts = what.split(".")
    return tuple(parts[:-1] if parts[-1].startswith(("parameters(", "named_parameters(")) else parts)


def _constant(node: ast.expr) -> bool | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, bool) else None
