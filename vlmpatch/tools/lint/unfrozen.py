"""What a script chooses to be trained before it calls ``get_peft_model``, which freezes it again."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from vlmpatch.tools.lint.modules import Module

Taken = Callable[[ast.expr], bool | None]
_PEFT, _KEPT = "get_peft_model", "modules_to_save"


class Refrozen(NamedTuple):
    """A part of a model, and where it is unfrozen too early."""

    part: str
    where: str


class _Event(NamedTuple):
    """A part of the model ``root`` is unfrozen, or, without a ``part``, PEFT is given all of it."""

    root: str
    part: str
    line: int


def refrozen(modules: Sequence[Module], taken: Taken = lambda test: None) -> list[Refrozen]:
    """The parts of a model that are unfrozen before PEFT gets it, and never after.

    A module that says ``modules_to_save`` chooses its parts there, and is left alone.

    Args:
        modules: the program, and what it imports.
        taken: what a condition of the program comes to, where that is known.
    """
    found = []
    for module in modules:
        if _PEFT not in module.text or _KEPT in module.text:
            continue
        for body in bodies(module.tree):
            for event in _lost(list(_events(body, taken))):
                found.append(Refrozen(event.part, f"{os.path.basename(module.path)}:{event.line}"))
    return found


def bodies(tree: ast.Module) -> Iterator[Sequence[ast.stmt]]:
    """What a module runs, and what each of its functions does."""
    yield tree.body
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.body


def _lost(events: Sequence[_Event]) -> Iterator[_Event]:
    for number, event in enumerate(events):
        later = [each for each in events[number + 1 :] if each.root == event.root]
        given = [place for place, each in enumerate(later) if not each.part]
        if event.part and given and not any(each.part for each in later[given[0] :]):
            yield event


def _events(
    body: Sequence[ast.stmt], taken: Taken, chosen: str | None = None, loop: str = ""
) -> Iterator[_Event]:
    """In the order of the text, in the branches that may be taken.

    Args:
        body: of a function, a loop, a branch.
        taken: as in ``refrozen``.
        chosen: None, or by what a condition chooses among the parameters of the loop around: a part of their
            names, or nothing that can be read.
        loop: what that loop goes over.
    """
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.If):
            known = taken(node.test)
            if known is not False:
                yield from _events(node.body, taken, _part_of_a_name(node.test) if loop else None, loop)
            if known is not True:
                yield from _events(node.orelse, taken, "" if loop else None, loop)
        elif isinstance(node, ast.For):
            yield from _events(node.body, taken, None, ast.unparse(node.iter))
        else:
            for name in ("body", "orelse", "finalbody"):
                yield from _events(getattr(node, name, []), taken, chosen, loop)
            if not hasattr(node, "body"):
                yield from _said(node, chosen, loop)


def _part_of_a_name(test: ast.expr) -> str:
    """``projector`` of ``"projector" in name``."""
    asked = test.left if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In) else None
    return asked.value.strip(".") if isinstance(asked, ast.Constant) and isinstance(asked.value, str) else ""


def _said(node: ast.stmt, chosen: str | None, loop: str) -> Iterator[_Event]:
    what = _unfrozen(node, loop)
    if what:
        root, *inner = what.split(".")
        parameters = inner[-1:] and inner[-1].startswith(("parameters(", "named_parameters("))
        if len(inner) > bool(parameters) or (chosen is not None and parameters):
            part = [root, *inner[: len(inner) - bool(parameters)], *filter(None, [chosen])]
            yield _Event(root, ".".join(part), node.lineno)
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _name(call.func) == _PEFT and call.args:
            yield _Event(ast.unparse(call.args[0]), "", node.lineno)


def _unfrozen(node: ast.stmt, loop: str) -> str:
    """``model.projector`` of ``model.projector.requires_grad_()``; what a loop that unfreezes goes over."""
    if isinstance(node, ast.Assign) and _is_true(node.value):
        return loop if any(_name(target) == "requires_grad" for target in node.targets) else ""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    if call.func.attr != "requires_grad_" or (call.args and not _is_true(call.args[0])):
        return ""
    return loop or ast.unparse(call.func.value)


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))
