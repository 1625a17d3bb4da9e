"""The Python files of a launch: its program, and what that imports from beside it. Parsed, never run."""

from __future__ import annotations

import ast
import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vlmpatch.support import files
from vlmpatch.tools.lint.shell.script import found

LARGEST = 1 << 20
MOST = 24  # files of one launch
_TRIED = 400  # imports that one launch is asked about


class Module(NamedTuple):
    """A file that was parsed."""

    path: str
    text: str
    tree: ast.Module


def parsed(path: str) -> Module | None:
    """The file at ``path``, unless it cannot be read or parsed."""
    try:
        text = files.read(path, LARGEST)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's own code: no business of this command
            return Module(path, text, ast.parse(text))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def reachable(program: Module, folder: str) -> list[Module]:
    """``program``, and what it imports that lies beside it or in or above ``folder``, the nearest first."""
    beside = os.path.dirname(program.path) or "."
    seen, waiting, modules = {os.path.realpath(program.path)}, deque([program]), list[Module]()
    tried: dict[str, str | None] = {}
    while waiting and len(modules) < MOST:
        module = waiting.popleft()
        modules.append(module)
        for path in _imported(module, (beside, folder), tried):
            real = os.path.realpath(path)
            if real not in seen and (next_ := parsed(path)):
                seen.add(real)
                waiting.append(next_)
            if len(seen) > MOST:
                break
    return modules


def _imported(module: Module, folders: Sequence[str], tried: dict[str, str | None]) -> Iterator[str]:
    here = os.path.dirname(module.path) or "."
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = os.path.join(here, *[os.pardir] * (node.level - 1))
            names = [f"{node.module}.{name.name}" if node.module else name.name for name in node.names]
            for name in [node.module, *names] if node.module else names:
                yield from _file(os.path.join(base, *name.split(".")))
        elif isinstance(node, (ast.ImportFrom, ast.Import)):
            for name in _named(node):
                if name not in tried and len(tried) < _TRIED:
                    tried[name] = _absolute(name, folders)
                if path := tried.get(name):
                    yield path


def _named(node: ast.ImportFrom | ast.Import) -> list[str]:
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    module = node.module or ""
    return [module, *(f"{module}.{name.name}" for name in node.names)]


def _absolute(name: str, folders: Sequence[str]) -> str | None:
    top, *rest = name.split(".")
    for folder in folders:
        first = found(folder, top, f"{top}.py")
        if first is None:
            continue
        base = os.path.join(os.path.dirname(first), top, *rest)
        if path := next(_file(base), None):
            return path
    return None


def _file(base: str) -> Iterator[str]:
    for path in (f"{base}.py", os.path.join(base, "__init__.py")):
        if "\0" not in path and os.path.isfile(path):
            yield path
            return
