"""What a patch is made of: one digest over its file and every file of ``patches/`` that it uses.

It depends on what the code does and not on where a helper lies: an import statement that leads into
``patches/`` counts as the names it binds and the digest of the file they come from. So a helper that is
moved, with its users' import lines, leaves every digest as it was, and one that is edited changes those of
its users, however many imports away they are.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

from vlmpatch.gate.source import digest

Module = tuple[str, ...]  # below patches/: ("deepspeed", "zero3_uneven_calls")
PACKAGE: Module = ("vlmpatch", "patches")


class _Name(NamedTuple):
    """A name that an import statement binds."""

    bound: str
    taken: str  # what it is called where it comes from; empty where it is that module itself
    source: Module | str  # a module below patches/, or any other by its name


class Revisions:
    """The digests of the modules below one folder; each file is read once.

    Args:
        patches: the folder, with one package an upstream.
        package: the name under which Python imports it.
    """

    def __init__(self, patches: str, package: Module = PACKAGE) -> None:
        self._patches, self._package = patches, package
        self._files: dict[Module, tuple[str, list[_Name]]] = {}

    def of(self, module: str) -> str:
        """12 hex digits over patch ``module`` (``deepspeed.zero3_uneven_calls``) and all it uses.

        Comments, docstrings and layout do not count; equal on every Python version.

        Raises:
            OSError: its file, or one that it imports, cannot be read.
            SyntaxError: one of them is not Python.
        """
        return self._digest(tuple(module.split(".")), ())

    def used_by(self, module: str) -> frozenset[str]:
        """The modules below the folder that ``module`` imports, directly or through others.

        Raises:
            OSError, SyntaxError: as for ``of``.
        """
        found: set[Module] = set()
        waiting = [tuple(module.split("."))]
        while waiting:
            new = _within(self._read(waiting.pop())[1]) - found
            found |= new
            waiting += new
        return frozenset(map(".".join, found))

    def files(self, module: str) -> list[str]:
        """The files that the digest of ``module`` is made of, below the folder, written with ``/``.

        Raises:
            OSError, SyntaxError: as for ``of``.
        """
        modules = [tuple(name.split(".")) for name in {module, *self.used_by(module)}]
        paths = (self._path(each) for each in modules)
        return sorted(
            os.path.relpath(path, self._patches).replace(os.sep, "/") for path in paths if path is not None
        )

    def _digest(self, module: Module, above: tuple[Module, ...]) -> str:
        if module in above:  # a circle: how far up it closes, whatever the files are called
            return str(len(above) - above.index(module))
        text, names = self._read(module)
        used = {source: self._digest(source, (*above, module)) for source in _within(names)}
        imported = {
            f"{bound}={taken}@{used[source] if isinstance(source, tuple) else source}"
            for bound, taken, source in names
        }
        return hashlib.sha256("\n".join([text, *sorted(imported)]).encode()).hexdigest()[:12]

    def _read(self, module: Module) -> tuple[str, list[_Name]]:
        """What ``module`` does beside its imports from ``patches/``, and the names these bind."""
        if module not in self._files:
            path = self._path(module)
            with open(path or self._stem(module), encoding="utf-8") as handle:
                source = handle.read()
            tree = ast.parse(source)
            here = (*module, "__init__") if path and path.endswith("__init__.py") else module
            found = {node: self._names(node, here) for node in ast.walk(tree) if isinstance(node, _IMPORTS)}
            inside = {node: names for node, names in found.items() if _within(names)}
            text = f"{digest(_without(source, inside))} {[*_nesting(tree, inside)]}"
            self._files[module] = text, [name for names in inside.values() for name in names]
        return self._files[module]

    def _names(self, node: ast.Import | ast.ImportFrom, here: Module) -> list[_Name]:
        """What ``node``, a statement of module ``here``, binds."""
        if isinstance(node, ast.Import):
            return [
                _Name(alias.asname or alias.name, "", self._source(tuple(alias.name.split("."))))
                for alias in node.names
            ]
        base = (*self._package, *here)[: -node.level] if node.level else ()
        base += tuple((node.module or "").split(".")) if node.module else ()
        return [self._taken(base, alias) for alias in node.names]

    def _taken(self, base: Module, alias: ast.alias) -> _Name:
        module = self._source((*base, alias.name))
        bound = alias.asname or alias.name
        if isinstance(module, tuple) and self._path(module):
            return _Name(bound, "", module)
        return _Name(bound, alias.name, self._source(base))

    def _source(self, name: Module) -> Module | str:
        if name[: len(self._package)] == self._package:
            return name[len(self._package) :]
        return ".".join(name)

    def _path(self, module: Module) -> str | None:
        stem = self._stem(module)
        return next((p for p in (f"{stem}.py", os.path.join(stem, "__init__.py")) if os.path.isfile(p)), None)

    def _stem(self, module: Module) -> str:
        return os.path.join(self._patches, *module)


_IMPORTS = (ast.Import, ast.ImportFrom)


def _within(names: Collection[_Name]) -> set[Module]:
    return {name.source for name in names if isinstance(name.source, tuple)}


def _without(source: str, nodes: Collection[ast.stmt]) -> str:
    """``source`` with nothing where ``nodes`` stand."""
    lines = source.encode().splitlines(keepends=True)  # columns are counted in bytes
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        lines[first : last + 1] = [before + after]
    return b"".join(lines).decode()


def _nesting(tree: ast.AST, passed: Collection[ast.AST], depth: int = 0) -> Iterator[int]:
    """How deep each statement lies, which ``code.digest`` does not see; none of ``passed``, no docstring."""
    for child in ast.iter_child_nodes(tree):
        statement = isinstance(child, ast.stmt)
        if statement and child not in passed and not _is_text(child):
            yield depth
        yield from _nesting(child, passed, depth + statement)


def _is_text(node: ast.AST) -> bool:
    value = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str)
