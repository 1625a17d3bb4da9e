"""What a script's own Trainer does not take of what a newer transformers passes to it."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vlmpatch.tools.lint.modules import Module

Taken = Callable[[ast.expr], bool | None]


class Passed(NamedTuple):
    """What transformers passes to a method: by keyword or, counted with ``self``, by position."""

    since: str
    keyword: str
    positional: int
    instead: str


METHODS: Mapping[str, Passed] = {
    "compute_loss": Passed(
        "4.46.0", "num_items_in_batch", 0,
        "def compute_loss(self, model, inputs, return_outputs=False, **kwargs):",
    ),
    "training_step": Passed("4.46.0", "", 4, "def training_step(self, model, inputs, *args, **kwargs):"),
    "log": Passed("4.47.0", "", 3, "def log(self, logs, *args, **kwargs):"),
    "_get_train_sampler": Passed("4.52.0", "", 2, "def _get_train_sampler(self, *args, **kwargs):"),
}  # fmt: skip
_SAVES, _SAVED = "_save_checkpoint", ("4.47.0", "super()._save_checkpoint(model, trial)")
_TOKENIZER, _PROCESSING = "tokenizer", ("5.0.0", "processing_class=tokenizer")


class Outdated(NamedTuple):
    """A method or an argument that transformers does not bear from ``since`` on."""

    name: str
    where: str
    since: str
    instead: str


class _Class(NamedTuple):
    node: ast.ClassDef
    bases: tuple[str, ...]
    where: str


def outdated(modules: Sequence[Module], taken: Taken = lambda test: None) -> list[Outdated]:
    """All of it in the trainers that the first of ``modules`` names, and in what is put into upstream's.

    Args:
        modules: the program, and what it imports.
        taken: what a condition of the program comes to, where that is known.
    """
    if not modules:
        return []
    classes = {each.node.name: each for module in modules for each in _classes(module)}
    named = set(_named(modules[0].tree, taken))
    found = [*_swapped(modules), *_passed_to_trainers(modules[0], classes)]
    for name in sorted(named & classes.keys()):
        line = _ancestry(name, classes)
        if any(base.endswith("Trainer") for each in line for base in each.bases):
            found += _of_class(line)
    return list(dict.fromkeys(found))


def _named(node: ast.AST, taken: Taken) -> Iterator[str]:
    """The names that are used below ``node``, but for branches that are not taken."""
    if isinstance(node, (ast.If, ast.IfExp)) and (known := taken(node.test)) is not None:
        branch = node.body if known else node.orelse
        for each in branch if isinstance(branch, list) else [branch]:
            yield from _named(each, taken)
        return
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
        yield _name(node)
    for child in ast.iter_child_nodes(node):
        yield from _named(child, taken)


def generate(modules: Sequence[Module]) -> bool:
    """Whether a trainer among ``modules`` calls ``generate()`` itself."""
    return any(".generate(" in module.text and "Trainer" in module.text for module in modules)


def _of_class(line: Sequence[_Class]) -> Iterator[Outdated]:
    """Of a class and those of its bases that are the script's, the nearest first."""
    methods: dict[str, tuple[ast.FunctionDef, str]] = {}
    for each in line:
        for node in each.node.body:
            if isinstance(node, ast.FunctionDef):
                methods.setdefault(node.name, (node, each.where))
    for name, (node, where) in methods.items():
        if name == "compute_loss" and "training_step" in methods:
            continue  # it is called by that one, as the script wrote it
        yield from _method(name, node, where)
        for call in ast.walk(node) if name == _SAVES else ():
            if isinstance(call, ast.Call) and _name(call.func) == _SAVES and _saves_metrics(call):
                yield Outdated(_SAVES, f"{where}:{call.lineno}", *_SAVED)


def _method(name: str, node: ast.FunctionDef, where: str) -> Iterator[Outdated]:
    passed = METHODS.get(name)
    if passed and not _takes(node.args, passed):
        yield Outdated(name, f"{where}:{node.lineno}", passed.since, passed.instead)


def _takes(arguments: ast.arguments, passed: Passed) -> bool:
    positional = [*arguments.posonlyargs, *arguments.args]
    if passed.keyword:
        named = {each.arg for each in (*positional, *arguments.kwonlyargs)}
        return arguments.kwarg is not None or passed.keyword in named
    return arguments.vararg is not None or len(positional) >= passed.positional


def _saves_metrics(call: ast.Call) -> bool:
    upstream = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call)
    return upstream and (len(call.args) > 2 or any(word.arg == "metrics" for word in call.keywords))


def _swapped(modules: Sequence[Module]) -> Iterator[Outdated]:
    """``Trainer._get_train_sampler = …``, a function of the script's in place of upstream's."""
    functions = {
        node.name: (node, os.path.basename(module.path))
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef) and node.name in METHODS
    }
    nodes = [node for module in modules if functions for node in ast.walk(module.tree)]
    for node in [node for node in nodes if isinstance(node, ast.Assign)]:
        for target in node.targets:
            if not isinstance(target, ast.Attribute) or not _name(target.value).endswith("Trainer"):
                continue
            if value := functions.get(_name(node.value)):
                yield from _method(target.attr, *value)


def _passed_to_trainers(program: Module, classes: Mapping[str, _Class]) -> Iterator[Outdated]:
    """``tokenizer=`` in a call that builds a trainer, unless the script's own constructor takes it."""
    where = os.path.basename(program.path)
    for node in ast.walk(program.tree):
        if not isinstance(node, ast.Call) or not _name(node.func).endswith("Trainer"):
            continue
        line = _ancestry(_name(node.func), classes)
        own = any(_TOKENIZER in _parameters(each.node, "__init__") for each in line)
        if not own and any(word.arg == _TOKENIZER for word in node.keywords):
            yield Outdated(_TOKENIZER, f"{where}:{node.lineno}", *_PROCESSING)


def _parameters(node: ast.ClassDef, method: str) -> set[str]:
    defined = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == method]
    return {each.arg for one in defined for each in (*one.args.args, *one.args.kwonlyargs)}


def _classes(module: Module) -> Iterator[_Class]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            yield _Class(node, tuple(_name(base) for base in node.bases), os.path.basename(module.path))


def _ancestry(name: str, classes: Mapping[str, _Class]) -> list[_Class]:
    line: list[_Class] = []
    waiting = [name]
    while waiting:
        found = classes.get(waiting.pop(0))
        if found and found not in line:
            line.append(found)
            waiting += found.bases
    return line


def _name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))
