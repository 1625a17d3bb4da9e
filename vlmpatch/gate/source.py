"""The look at the code: what a target's source says, read without importing it.

Forks, nightlies and vendored copies carry fixes early and bugs late; a version only says where to
look. The file on disk is parsed, so ``doctor`` reaches the same verdict as a training run.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from vlmpatch.gate import scanner

_DEFINES = re.compile(r"(async\s+)?def\s")
# What a digest tells apart; the standard library's tokenizer takes several times as long.
_PIECES = re.compile(
    rf"""
    (?P<nothing>{scanner.COMMENT}|\\\n)
    |(?P<line>\n)
    |(?P<string>{scanner.STRING})
    |(?P<bracket>[()\[\]{{}}])
    |(?P<code>[^\s\#"'()\[\]{{}}\\][^\n\#"'()\[\]{{}}\\]*)
    """,
    re.S | re.X,
)


class Unrecognised(Exception):
    """The target does not have a shape the patch knows; its text says what is different."""


class NoSource(Unrecognised):
    """There is nothing to look at: no file, no Python text in it."""


class Function:
    """A function as its source has it. ``in`` asks for a piece of its text."""

    def __init__(self, source: str) -> None:
        self.source = source

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """Its parameters' names, in their order."""
        return _parameters(self._arguments)

    @functools.cached_property
    def defaults(self) -> dict[str, str]:
        """Of each parameter that has one, the default as it is written."""
        return _defaults(self._arguments)

    @functools.cached_property
    def _arguments(self) -> ast.arguments:
        # Parsed only for those who ask: most look for a piece of the text.
        try:
            node = ast.parse(f"{scanner.head(self.source)} ...").body[0]
        except SyntaxError:  # more than the head, or not all of it
            node = ast.parse(self.source).body[0]
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        return node.args

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
        self._scan = scanner.Scan(source)
        self._classes: dict[str, frozenset[str] | None] = {}

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The syntax tree, made when it is first asked for and shared by all who look.

        Raises:
            NoSource: the text is no Python.
        """
        with self._parsing():
            return ast.parse(self.source)

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """Every word of the text, comments and strings included."""
        return frozenset(re.findall(r"[^\W\d]\w*", self.source))

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Names bound at the module's top level: functions, classes, assignments, imports."""
        with self._parsing():
            return frozenset(self._scan.names())

    def function(self, qualname: str) -> Function | None:
        """The function ``qualname`` (``f`` or ``Class.method``), or None; the last definition wins.

        Raises:
            NoSource: the source is not Python.
        """
        text = self._text(qualname)
        return Function(text) if text is not None and _DEFINES.match(text) else None

    def class_names(self, qualname: str) -> frozenset[str] | None:
        """Names bound in the body of class ``qualname``, or None when there is no such class."""
        if qualname not in self._classes:
            with self._parsing():
                found = self._scan.class_names(qualname)
            self._classes[qualname] = None if found is None else frozenset(found)
        return self._classes[qualname]

    def _text(self, qualname: str) -> str | None:
        with self._parsing():
            return self._scan.definition(qualname)

    @contextlib.contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise NoSource(f"{self.path} cannot be read as Python source: {error}") from error


class Watched(Code):
    """Source that remembers which of its parts a patch asked about, and what they looked like."""

    def __init__(self, module: str, path: str, source: str) -> None:
        super().__init__(module, path, source)
        self.asked: dict[str, str] = {}

    def function(self, qualname: str) -> Function | None:
        """See ``Code.function``."""
        found = super().function(qualname)
        self.asked[qualname] = found.digest if found else "absent"
        return found

    def class_names(self, qualname: str) -> frozenset[str] | None:
        """See ``Code.class_names``."""
        found = super().class_names(qualname)
        self.asked.setdefault(qualname, "class" if found is not None else "absent")
        return found

    @property
    def shape(self) -> str:
        """12 hex digits over what was asked about; over the whole source where the patch read that."""
        if not self.asked:
            return digest(self.source)
        return hashlib.sha256(repr(sorted(self.asked.items())).encode()).hexdigest()[:12]


def of_module(module: ModuleType) -> Code:
    """The source of an imported module.

    Raises:
        NoSource: it has none on disk, nor in an archive.
    """
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not path:
        raise NoSource(f"{module.__name__} has no source file")
    archived = None if os.path.exists(path) else _archived(module)
    return of_file(module.__name__, path) if archived is None else Code(module.__name__, path, archived)


def _archived(module: ModuleType) -> str | None:
    """What its loader says, as for a module in a zip file that is on ``sys.path``."""
    try:
        found = module.__loader__.get_source(module.__name__)  # type: ignore[union-attr]
    except (AttributeError, ImportError, OSError, SyntaxError, ValueError):
        return None
    return found if isinstance(found, str) else None


def of_file(name: str, path: str) -> Code:
    """The source at ``path``, read once and parsed only when a look needs the tree.

    Raises:
        NoSource: it cannot be read. What is no Python is said by the first question asked of it.
    """
    try:
        return _read(name, path, os.stat(path).st_mtime_ns)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise NoSource(f"{path} cannot be read as Python source: {error}") from error


@functools.lru_cache(maxsize=8)  # several patches look at one target, and at its siblings, in turn
def _read(name: str, path: str, changed: int) -> Code:
    with tokenize.open(path) as handle:
        return Code(name, path, handle.read())


def locate(name: str) -> str | None:
    """The file module ``name`` would be imported from, found without importing any package."""
    top, *rest = name.split(".")
    spec = PathFinder.find_spec(top, sys.path) or _editable(top)
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


def _editable(name: str) -> ModuleSpec | None:
    """Where setuptools has an editable install: known to a finder that its .pth file brings, in no folder."""
    for finder in sys.meta_path:
        if str(getattr(finder, "__module__", "")).startswith("__editable__"):
            found: ModuleSpec | None = finder.find_spec(name, None)
            if found is not None:
                return found
    return None


def digest(source: str) -> str:
    """See ``Function.digest``."""
    kept: list[str] = []
    depth, fresh = 0, True  # of brackets; whether a statement begins here
    for piece in _PIECES.finditer(source):
        if piece.lastgroup == "line":
            fresh = fresh or not depth
        elif piece.lastgroup != "nothing":
            text = piece[0]
            if piece.lastgroup != "string" or not fresh:
                kept.append(text)
            fresh = False
            depth += (text in "([{") - (text in ")]}")
    # Python 3.12's tokenizer splits f-strings, and undoubles their braces: digests were made of either.
    text = "".join("".join(kept).split()).replace("{{", "{").replace("}}", "}")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
