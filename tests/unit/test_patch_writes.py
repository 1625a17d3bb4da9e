"""What a patch writes to: objects of its own, and others through the journal or ``vlmpatch.api.assign``.

Read from the source, so that it holds for every patch that comes, whatever it is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.unit.test_patch_imports import WITHIN, imported, sources

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
BUILTIN = {"setattr", "delattr"}
DUNDER = {"__setattr__", "__delattr__", "__setitem__", "__delitem__"}
MUTATES = {
    *("append", "extend", "insert", "remove", "pop", "clear", "update", "setdefault", "popitem", "add"),
    *("discard", "appendleft", "sort", "reverse", "__setitem__", "__delitem__", "__ior__"),
}
NAMESPACES = {"vars", "globals", "locals"}  # each returns a namespace
OF_THE_GRAPH = {"register_hook", "register_prehook"}  # of a node or a tensor: it goes when the graph goes


class Writes(ast.NodeVisitor):
    """Collects what a file of ``patches/`` writes to that is not its own.

    Args:
        tree: of the file.
        classes: names in it that are classes of ``patches/``.
        modules: names in it that are imported modules.
    """

    def __init__(self, tree: ast.Module, classes: set[str], modules: set[str]) -> None:
        self.classes, self.modules = classes, modules
        self.found: list[str] = []
        self._own: list[set[str]] = [{*_threads(tree)}]
        self._registers = {*_registers(tree)}
        self._class = False
        self.visit(tree)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._class = self._class, True
        for each in node.body:
            self.visit(each)
        self._class = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in self._registers:  # what it does is what its handle's ``remove`` takes back
            return
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        own = {each.arg for each in parameters if _types(each.annotation) & self.classes}
        if self._class and parameters:
            own.add(parameters[0].arg)
            if node.name == "remove":
                return
        own |= {*_made_here(node, self.classes)}
        outer, self._class = self._class, False
        self._own.append(own)
        self.generic_visit(node)
        self._own.pop()
        self._class = outer

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, (ast.Store, ast.Del)) and not self._is_own(node.value):
            self._found(node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, (ast.Store, ast.Del)) and self._is_of_a_module(node.value):
            self._found(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _last(node.func)
        if isinstance(node.func, ast.Name) and name in BUILTIN and not self._is_own(node.args[0]):
            self._found(node)
        if isinstance(node.func, ast.Attribute):
            if name in DUNDER & {"__setattr__", "__delattr__"} and not self._is_own(node.args[0]):
                self._found(node)
            if name in MUTATES and self._is_of_a_module(node.func.value):
                self._found(node)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        name = _last(call.func) if isinstance(call, ast.Call) else ""
        if name.startswith("register_") and name not in OF_THE_GRAPH:
            self._found(node)  # nobody keeps the handle
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self._found(node)

    def _found(self, node: ast.stmt | ast.expr) -> None:
        self.found.append(f"line {node.lineno}: {ast.unparse(node)}")

    def _is_own(self, base: ast.expr) -> bool:
        return isinstance(base, ast.Name) and any(base.id in names for names in self._own)

    def _is_of_a_module(self, base: ast.expr) -> bool:
        """Whether ``base`` is something that code is looked up in, or that outlives a run."""
        root = base
        while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
            if isinstance(root, ast.Call) and _last(root.func) in NAMESPACES:
                return True
            if isinstance(root, ast.Attribute) and root.attr == "__dict__":
                return True
            root = root.func if isinstance(root, ast.Call) else root.value
        return base is not root and isinstance(root, ast.Name) and root.id in self.modules


def _last(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _types(annotation: ast.expr | None) -> set[str]:
    """What mypy holds something to: a class, or a class or None."""
    if isinstance(annotation, ast.BinOp):
        return _types(annotation.left) | _types(annotation.right)
    return {annotation.id} if isinstance(annotation, ast.Name) else set()


def _threads(tree: ast.Module) -> Iterator[str]:
    """What is a thread's own, by its name at the top of the file."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "threading.local()":
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _registers(tree: ast.Module) -> Iterator[str]:
    """The functions that are handed to ``patch.hook``, whose handles the journal removes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("patch.hook"):
            yield from (node.args[0].id for _ in node.args[:1] if isinstance(node.args[0], ast.Name))


def _made_here(function: ast.FunctionDef, classes: set[str]) -> Iterator[str]:
    """Local names for an object of a class of ours, or for a copy that was made for the purpose."""
    made: dict[str, bool] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and _types(node.annotation) & classes:
            yield ast.unparse(node.target)
            continue
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) or node.value is None:
            continue
        called = node.value.func if isinstance(node.value, ast.Call) else ast.Name("")
        ours = _last(called) in classes or ast.unparse(called) in ("copy.copy", "copy.deepcopy")
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for each in ast.walk(target):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    made[each.id] = made.get(each.id, True) and ours
    yield from (name for name, ours in made.items() if ours)


def foreign(module: str, source: str, every: Iterable[str] = ()) -> list[str]:
    """What the file writes to past the journal.

    Args:
        module: its dotted name.
        source: its text.
        every: ``module:class`` of all classes of ``patches/``.
    """
    tree = ast.parse(source)
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            ours = [name for name in imported(node, module) if name.startswith(WITHIN)]
            for alias in node.names:
                if any(f"{name}:{alias.name}" in every for name in ours):
                    classes.add(alias.asname or alias.name)
    return [f"{module}, {found}" for found in Writes(tree, classes, modules | {"module"}).found]


def test_patches_write_to_their_own_objects_or_through_the_journal() -> None:
    read = sources()
    every = {
        f"{module}:{node.name}"
        for module, source in read.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    }
    assert len(read) > 100
    assert [found for module, source in read.items() for found in foreign(module, source, every)] == []


def spelled_out(source: str) -> list[str]:
    """Where an argument of a call is looked for by its place, and else by its name."""
    choices = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.IfExp))
    words = [(ast.unparse(node.body), ast.unparse(node.orelse)) for node in choices]
    return [placed for placed, named in words if placed.startswith("args[") and named.startswith("kwargs")]


def test_an_argument_of_a_call_is_read_in_one_way() -> None:
    """``vlmpatch.api.Argument`` is that way."""
    assert {module: found for module, text in sources().items() if (found := spelled_out(text))} == {}
    assert spelled_out("model = args[0] if args else kwargs.get('model')") == ["args[0]"]


OURS = """
import copy, os, sys, threading
from .._shared.deadlock import RankMonitor

_running = threading.local()

class Mine(dict):
    def __init__(self, patch):
        self.patch = patch
        self["key"] = 1
        setattr(self, "name", 1)

        def later():
            self.patch = None

    def apply_all(self):
        self.patch.replace(self, "patch", None)

"""


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("def forward(original, self, /, *args):\n    self.kept = 1", "self.kept"),
        ("def f(engine):\n    engine.optimizer.kept: int = 1", "engine.optimizer.kept"),
        ("def f(engine):\n    engine.steps += 1", "engine.steps"),
        ("def f(engine):\n    del engine.steps", "engine.steps"),
        ("def f(engine):\n    for engine.step in range(3):\n        pass", "engine.step"),
        ("def f(engine, name):\n    setattr(engine, name, 1)", "setattr(engine"),
        ("def f(engine, name):\n    delattr(engine, name)", "delattr(engine"),
        ("def f(engine, name):\n    object.__setattr__(engine, name, 1)", "object.__setattr__(engine"),
        ("def f(engine, name):\n    engine.__setattr__(name, 1)", "engine.__setattr__(name"),
        ("def f(engine, name):\n    engine.__dict__[name] = 1", "engine.__dict__[name]"),
        ("def f(engine, name):\n    vars(engine)[name] = 1", "vars(engine)[name]"),
        ("def f(engine, name):\n    vars(engine).update(x=1)", "vars(engine).update"),
        ("def apply(patch, module):\n    module.Trainer = None", "module.Trainer"),
        ("def apply(patch, module):\n    module.REGISTRY['a'] = None", "module.REGISTRY['a']"),
        ("def apply(patch, module):\n    module.REGISTRY.update(a=None)", "module.REGISTRY.update"),
        ("def f():\n    os.environ['A'] = 'b'", "os.environ['A']"),
        ("def f():\n    sys.meta_path.insert(0, None)", "sys.meta_path.insert"),
        ("def f(name):\n    sys.modules.pop(name)", "sys.modules.pop"),
        ("def f(model):\n    model.register_forward_hook(f)", "model.register_forward_hook"),
        ("def f():\n    global kept\n    kept = 1", "global kept"),
        ("def f():\n    mine = Mine(1)\n    mine = f()\n    mine.kept = 1", "mine.kept"),
        ("def f(patch, model):\n    patch.hook(model.register_forward_hook, f)", ""),
        ("def f(model):\n    handle = model.register_forward_hook(f)\n    handle.remove()", ""),
        ("def f(node):\n    node.register_prehook(f)", ""),
        ("def f(patch):\n    patch.hook(last, f)\n\ndef last(f):\n    sys.meta_path.append(f)", ""),
        ("def f(monitor: RankMonitor | None):\n    monitor.whole = False", ""),
        ("def f():\n    mine = Mine(1)\n    mine.kept = 1", ""),
        ("def f(field):\n    turned = copy.copy(field)\n    turned.default = False", ""),
        ("def f(model):\n    mine: Mine = model.mine()\n    mine.kept = 1", ""),
        ("def f():\n    _running.now = 1", ""),
        ("def f(optimizer):\n    assign(optimizer, 'steps', 1)", ""),
        ("def f(kwargs):\n    kwargs['use_cache'] = True", ""),
    ],
)
def test_what_is_written_past_the_journal_is_found(statement: str, found: str) -> None:
    said = foreign(f"{WITHIN}torch.x", OURS + statement, {f"{WITHIN}_shared.deadlock:RankMonitor"})
    assert [found in each for each in said] == ([True] if found else [])
