"""How MiniCPM-V's fine-tune script and remote code are recognised: by what they do, not by where they lie.

``trainer``, ``finetune.trainer`` and ``dataset`` are names any program may use. The script's trainer is known
by several marks together, which every version of it since May 2024 has and nothing else was seen to have:

- on the text: a class built on ``transformers``' ``Trainer``, whose ``compute_loss`` begins with exactly
  ``(self, model, inputs, return_outputs)``, never reads ``model``, and calls ``self.model(data=inputs)`` or
  ``self.model.get_vllm_embedding(...)``, which are MiniCPM-V's forward and nobody else's;
- on the class: it is a ``transformers.Trainer`` with that ``compute_loss`` of its own.

What a text cannot lack is looked for before it is parsed.
"""

from __future__ import annotations

import ast
from types import FunctionType, ModuleType
from typing import Any

from vlmpatch.api import Code

NOT_THE_SCRIPT = "this module is not the trainer of MiniCPM-V's fine-tune script"
NOT_THE_MODEL = "this module has no MiniCPMV class"
MODELS = ("MiniCPMV", "MiniCPMO")
_SIZE = 200_000  # characters; the script's trainer has 11,000 and its dataset 21,000
_LOSS = ("self", "model", "inputs", "return_outputs")
_CALLED = ("self.model", "self.model.base_model")  # with ``data=inputs``
_FIRST = "self.model.get_vllm_embedding"  # by the script of May 2024


def is_script_trainer(code: Code) -> bool:
    """Whether the text is that of the script's ``trainer.py``."""
    if not mentions(code, "Trainer", "transformers", "def compute_loss", "self.model"):
        return False
    names = _trainer_names(code.tree)
    return any(_has_base(cls, names) and _goes_round(method) for cls, method in methods(code, "compute_loss"))


def methods(code: Code, name: str) -> list[tuple[ast.ClassDef, ast.FunctionDef]]:
    """Every method ``name`` of the module's classes, with its class."""
    classes = [node for node in code.tree.body if isinstance(node, ast.ClassDef)]
    return [
        (cls, node)
        for cls in classes
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]


def trainer_classes(module: ModuleType) -> list[type]:
    """The trainers of a module that ``is_script_trainer`` recognised: often one, none where it was misled."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and any(_is_transformers_trainer(base) for base in value.__mro__[1:])
        and begins(vars(value).get("compute_loss"), _LOSS)
    ]


def has_model(code: Code) -> bool:
    """Whether the module defines MiniCPM-V's model class."""
    return _defines(code, "MiniCPMV")


def model_name(code: Code) -> str | None:
    """The class of MiniCPM-V, or of MiniCPM-o, whose vision is the same, where the module defines one."""
    return next((name for name in MODELS if _defines(code, name)), None)


def model_class(module: ModuleType) -> Any:
    """The class that ``model_name`` found."""
    return next(getattr(module, name) for name in MODELS if hasattr(module, name))


def _defines(code: Code, name: str) -> bool:
    return f"class {name}(" in code.source and code.function(f"{name}.__init__") is not None


def mentions(code: Code, *words: str) -> bool:
    """Whether a file of the script's size has all of ``words``: the look before the look."""
    return len(code.source) <= _SIZE and all(word in code.source for word in words)


def begins(function: Any, names: tuple[str, ...]) -> bool:
    """Whether ``function``, under our own layers, is a plain one whose first parameters are ``names``."""
    while isinstance(function, FunctionType) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if not isinstance(function, FunctionType):
        return False
    code = function.__code__
    return code.co_varnames[: code.co_argcount][: len(names)] == names


def _is_transformers_trainer(cls: type) -> bool:
    return (cls.__module__, cls.__name__) == ("transformers.trainer", "Trainer")


def _trainer_names(tree: ast.Module) -> set[str]:
    """What the module calls transformers' Trainer."""
    names = {"transformers.Trainer", "transformers.trainer.Trainer"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("transformers", "transformers.trainer"):
            names |= {alias.asname or "Trainer" for alias in node.names if alias.name in ("Trainer", "*")}
    return names


def _has_base(cls: ast.ClassDef, names: set[str]) -> bool:
    return any(ast.unparse(base) in names for base in cls.bases)


def _goes_round(method: ast.FunctionDef) -> bool:
    """Whether a ``compute_loss`` has the script's parameters and calls ``self.model`` as the script does."""
    if tuple(argument.arg for argument in method.args.args[: len(_LOSS)]) != _LOSS:
        return False
    nodes = list(ast.walk(method))
    if any(isinstance(node, ast.Name) and node.id == "model" for node in nodes):
        return False
    return any(isinstance(node, ast.Call) and _is_the_scripts(node) for node in nodes)


def _is_the_scripts(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    if called == _FIRST:
        return True
    handed = {word.arg: ast.unparse(word.value) for word in call.keywords}
    return called in _CALLED and handed.get("data") == "inputs"
