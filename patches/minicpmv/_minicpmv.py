"""How MiniCPM-V's fine-tune script and remote code are recognised: by what they do, not by where they lie."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from types import ModuleType
from typing import Any

from vlmpatch.api import Code

NOT_THE_SCRIPT = "this module is not the trainer of MiniCPM-V's fine-tune script"
NOT_THE_MODEL = "this module has no MiniCPMV class"


def is_script_trainer(code: Code) -> bool:
    """Whether a class here computes its loss on ``self.model`` and not on the model it is given."""
    return any(_ignores_its_model(method) for _, method in methods(code.source, "compute_loss"))


def methods(source: str, name: str) -> list[tuple[ast.ClassDef, ast.FunctionDef]]:
    """Every method ``name`` of the module's classes, with its class."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return [
        (cls, node)
        for cls in classes
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]


def trainer_classes(module: ModuleType) -> list[type]:
    """The trainers of a module that ``is_script_trainer`` recognised."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and "model" in _names(vars(value).get("compute_loss"))
    ]


def has_model(code: Code) -> bool:
    """Whether the module defines MiniCPM-V's model class."""
    return code.function("MiniCPMV.__init__") is not None


def script_folders() -> list[str]:
    """Where the running script's own modules lie: its folder, first on ``sys.path``."""
    places = [os.path.dirname(os.path.abspath(sys.argv[0]))] if sys.argv and sys.argv[0] else []
    places += [os.path.abspath(sys.path[0])] if sys.path else []
    return list(dict.fromkeys(places))


def _ignores_its_model(method: ast.FunctionDef) -> bool:
    reads_argument, calls_own = False, False
    for node in ast.walk(method):
        if isinstance(node, ast.Name) and node.id == "model" and isinstance(node.ctx, ast.Load):
            reads_argument = True
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self.model"):
            calls_own = True
    return calls_own and not reads_argument


def _names(function: Any) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code.co_names if code else ()
