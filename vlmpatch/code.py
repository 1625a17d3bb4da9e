"""The look at the code: what a target's source says, read without importing it.

Forks, nightlies and vendored copies carry fixes early and bugs late; a version only says where to
look. The file on disk is parsed, so ``doctor`` reaches the same verdict as a training run.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import os
import sys
import tokenize
from importlib.machinery import PathFinder
from types import ModuleType
from typing import NamedTuple


class Unrecognised(Exception):
    """The target does not have a shape the patch knows; its text says what is different."""


class NoSource(Unrecognised):
    """There is nothing to look at: no file, no Python text in it."""


class Function(NamedTuple):
    """A function as its source has it. ``in`` asks for a piece of its text."""

    parameters: tuple[str, ...]
    defaults: dict[str, str]
    source: str

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and text in self.source

    @property
    def digest(self) -> str:
        """12 hex digits over the source without comments, docstring and white space.

        Equal on every Python version: made from the text, not from an AST dump.
        """
        return digest(self.source)


class Code:
    """The source of one module."""

    def __init__(self, module: str, path: str, source: str) -> None:
        self.module = module
        self.path = path
        self.source = source

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The syntax tree, made when it is first asked for and shared by all who look.

        Raises:
            NoSource: the text is no Python.
        """
        try:
            return ast.parse(self.source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise NoSource(f"{self.path} cannot be read as Python source: {error}") from error

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Names bound at the module's top level: functions, classes, assignments, imports."""
        return frozenset(name for node in self.tree.body for name in _bound(node))

    def function(self, qualname: str) -> Function | None:
        """The function ``qualname`` (``f`` or ``Class.method``), or None; the last definition wins."""
        node = self._find(qualname)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        return Function(_parameters(node.args), _defaults(node.args), self._text(node))

    def class_names(self, qualname: str) -> frozenset[str] | None:
        """Names bound in the body of class ``qualname``, or None when there is no such class."""
        node = self._find(qualname)
        if not isinstance(node, ast.ClassDef):
            return None
        return frozenset(name for child in node.body for name in _bound(child))

    def _find(self, qualname: str) -> ast.AST | None:
        node: ast.AST | None = self.tree
        for part in qualname.split("."):
            body = getattr(node, "body", [])
            node = next((child for child in reversed(body) if getattr(child, "name", None) == part), None)
            if node is None:
                return None
        return node

    @functools.cached_property
    def _lines(self) -> list[bytes]:
        return self.source.encode().split(b"\n")

    def _text(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        # As ast.get_source_segment, which takes the whole file apart for each function.
        lines = self._lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode()


def of_module(module: ModuleType) -> Code:
    """The source of an imported module.

    Raises:
        NoSource: it has none on disk.
    """
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not path:
        raise NoSource(f"{module.__name__} has no source file")
    return of_file(module.__name__, path)


def of_file(name: str, path: str) -> Code:
    """The source at ``path``, read once and parsed only when a look needs the tree.

    Raises:
        NoSource: it cannot be read.
    """
    try:
        return _read(name, path, os.stat(path).st_mtime_ns)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise NoSource(f"{path} cannot be read as Python source: {error}") from error


@functools.lru_cache(maxsize=2)  # several patches look at one target, and a file beside it, in turn
def _read(name: str, path: str, changed: int) -> Code:
    with tokenize.open(path) as handle:
        return Code(name, path, handle.read())


def locate(name: str) -> str | None:
    """The file module ``name`` would be imported from, found without importing any package."""
    top, *rest = name.split(".")
    spec = PathFinder.find_spec(top, sys.path)
    if spec is None:
        return None
    if not rest:
        return spec.origin
    for folder in spec.submodule_search_locations or ():
        stem = os.path.join(folder, *rest)
        for path in (stem + ".py", os.path.join(stem, "__init__.py")):
            if os.path.isfile(path):
                return path
    return None


def digest(source: str) -> str:
    """See ``Function.digest``."""
    kept: list[str] = []
    previous = tokenize.NEWLINE
    lines = io.StringIO(_dedented(source))
    for token in tokenize.generate_tokens(lines.readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            continue
        statement_of_its_own = token.type == tokenize.STRING and previous == tokenize.NEWLINE
        if not statement_of_its_own:
            kept.append("".join(token.string.split()))
        previous = token.type
    # Python 3.12 splits f-strings into several tokens and undoubles their braces; without white space
    # and with single braces both ways of cutting give the same text.
    text = "".join(kept).replace("{{", "{").replace("}}", "}")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _dedented(source: str) -> str:
    # ast.get_source_segment drops the first line's indentation only.
    lines = source.splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    surplus = min(indents, default=4) - 4
    body = [line[surplus:] if surplus > 0 else line for line in lines[1:]]
    return "\n".join([*lines[:1], *body]) + "\n"


def _bound(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    if isinstance(node, (ast.If, ast.Try, ast.With)):
        inner = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
        for handler in getattr(node, "handlers", []):
            inner.extend(handler.body)
        return [name for child in inner for name in _bound(child)]
    return []


def _parameters(args: ast.arguments) -> tuple[str, ...]:
    plain = [*args.posonlyargs, *args.args]
    names = [arg.arg for arg in plain]
    names += [args.vararg.arg] if args.vararg else []
    names += [arg.arg for arg in args.kwonlyargs]
    names += [args.kwarg.arg] if args.kwarg else []
    return tuple(names)


def _defaults(args: ast.arguments) -> dict[str, str]:
    plain = [*args.posonlyargs, *args.args]
    positional = zip(plain[len(plain) - len(args.defaults) :], args.defaults, strict=True)
    keyword = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    return {arg.arg: ast.unparse(value) for arg, value in [*positional, *keyword] if value is not None}
