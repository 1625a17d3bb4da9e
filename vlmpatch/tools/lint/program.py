"""What the launched Python file says of ``use_reentrant``, and of its Trainer; it is parsed and never run."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vlmpatch.tools.lint import overruled, sliced, trainers, unchecked, unfrozen
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.modules import Module, parsed, reachable
from vlmpatch.tools.lint.shell.script import found

_SMALL = 4000  # characters of a file that only calls another's train()
_KWARGS = "gradient_checkpointing_kwargs"


class Said(NamedTuple):
    """A value of ``use_reentrant``, and the line that says it."""

    value: bool
    line: int


def name(words: Sequence[str]) -> str:
    """The Python file that ``words`` start, as they name it; nothing where they start none."""
    for number, word in enumerate(words):
        if word.endswith(".py") and "=" not in word:
            return word
        if word == "-m" and number + 1 < len(words):
            module = words[number + 1]
            if not module.startswith(("torch.", "accelerate.", "deepspeed.")):
                return module.replace(".", "/") + ".py"
    return ""


def read(name: str, folder: str, launch: LaunchConfig) -> None:
    """Note what the Python file ``name`` says: ``use_reentrant``, over the command line, and its Trainer."""
    path = found(folder, name)
    program = parsed(path) if path else None
    if program is None:
        return
    if len(program.text) < _SMALL and _KWARGS not in program.text and (behind := _imported(program)):
        program = parsed(behind) or program
    try:
        said = list(_said(program.tree.body, launch)) if "use_reentrant" in program.text else []
        modules = reachable(program, folder)
        launch.outdated = trainers.outdated(modules, lambda test: _truth(test, launch))
        launch.generates = trainers.generate(modules)
        launch.refrozen = unfrozen.refrozen(modules, lambda test: _truth(test, launch))
        launch.overruled = overruled.overruled(modules, lambda test: _truth(test, launch))
        launch.sliced = sliced.sliced(modules)
    except RecursionError:
        return
    if where := unchecked.unchecked(modules):
        launch.say(unchecked.NAME, "none", where)
    for each in said[-1:]:
        launch.overrule("use_reentrant", each.value, f"{os.path.basename(program.path)}:{each.line}")


def _imported(program: Module) -> str | None:
    """The file beside or above that a short program takes its ``train`` from."""
    for node in ast.walk(program.tree):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
            continue
        if any(name.name in ("train", "main") for name in node.names):
            return found(os.path.dirname(program.path) or ".", node.module.replace(".", "/") + ".py")
    return None


def _said(body: Sequence[ast.stmt], launch: LaunchConfig) -> Iterator[Said]:
    """What is said in the branches that this launch may take, in order."""
    for statement in body:
        if isinstance(statement, ast.If):
            taken = _truth(statement.test, launch)
            if taken is not False:
                yield from _said(statement.body, launch)
            if taken is not True:
                yield from _said(statement.orelse, launch)
            continue
        inner = [
            each
            for name in ("body", "orelse", "finalbody")
            for each in getattr(statement, name, [])
            if isinstance(each, ast.stmt)
        ]
        if inner:
            yield from _said(inner, launch)
        else:
            yield from _values(statement)


def _truth(test: ast.expr, launch: LaunchConfig) -> bool | None:
    """What a condition on a flag comes to; None where it is another condition.

    A flag that the launch does not give is taken for off: that is the default of nearly all of them.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand, launch)
        return None if inner is None else not inner
    if isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name) and "arg" in test.value.id:
        given = launch.checkpointing if test.attr == "gradient_checkpointing" else launch.get(test.attr)
        return given is not None and (given.on or (given.number or 0) > 0)
    if isinstance(test, ast.Compare):
        return False if "bits" in ast.unparse(test) and launch.get("bits") is None else None
    return None


def _values(statement: ast.stmt) -> Iterator[Said]:
    """``….gradient_checkpointing_kwargs = {…}``, and the same as a keyword of a call."""
    if isinstance(statement, ast.Assign) and any(_names(target) for target in statement.targets):
        yield from _value(statement.value)
    for node in ast.walk(statement):
        if isinstance(node, ast.keyword) and node.arg == _KWARGS:
            yield from _value(node.value)


def _names(target: ast.expr) -> bool:
    return getattr(target, "attr", getattr(target, "id", "")) == _KWARGS


def _value(node: ast.expr) -> Iterator[Said]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "use_reentrant":
                yield from _constant(value)
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == "use_reentrant":
                yield from _constant(keyword.value)


def _constant(node: ast.expr) -> Iterator[Said]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield Said(node.value, node.lineno)
