"""Finds definitions in a long source without parsing all of it.

Parsing a file of 6,000 lines takes 0.1 s, finding ``class X`` in it and the twenty lines of one method a
thousandth of that. What the text leaves in doubt (a name defined twice, a ``def`` that may stand inside a
string) is decided by parsing the whole after all.
"""

from __future__ import annotations

import ast
import bisect
import functools
import itertools
import re
from typing import NamedTuple

_INDENT = re.compile(r"\n([ \t]+)(?:def |async def |class |@\w)")
_HEAD = re.compile(r"(?:async +def|def|class) +(\w+)")
_CLASS = re.compile(
    r"[ \t]*class\s+\w+\s*\([^()]*\)\s*:"
)  # with its bases, which may stand on lines of their own
_WORD = re.compile(r"\w")
STRING = r"""[rbufRBUF]{0,2}(?:
    \"{3}[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*\"{3}
    |'{3}[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'{3}
    |"[^"\\\n]*(?:\\.[^"\\\n]*)*"
    |'[^'\\\n]*(?:\\.[^'\\\n]*)*')"""
COMMENT = r"\#[^\n]*"
_WORDS = re.compile(f"{COMMENT}|{STRING}", re.S | re.X)
_COLON = re.compile(r":(?=[ \t]*(?:#.*)?\n)")
# A line that is neither empty, a comment, nor the end of brackets opened above it.
_TELLS = r"(?=[^\s)\]}#])"


class _Doubt(Exception):
    """The text alone does not say; the whole has to be parsed."""


class _Part(NamedTuple):
    """A stretch of a source, and the indentation of what is defined right inside it."""

    begin: int
    end: int
    indent: str


class Scan:
    """What is defined in ``source``, a module's.

    Every method raises SyntaxError where it has to be parsed and is not Python.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._whole = _Part(0, len(source), "")
        self._classes: dict[tuple[_Part, str], _Part | None] = {}  # several looks ask for one in turn

    def definition(self, qualname: str) -> str | None:
        """The text of a function or class, without decorators and first indentation; None without one.

        Args:
            qualname: ``f``, ``Class`` or ``Class.method``; the last definition of a name wins.
        """
        try:
            *classes, last = qualname.split(".")
            part = self._whole
            for name in classes:
                inner = self._class(part, name)
                if inner is None:
                    return None
                part = inner
            found = self._head(part, last)
            return None if found is None else self._block(part, found)
        except (_Doubt, SyntaxError):
            return _parsed(self.source, qualname)

    def class_names(self, name: str) -> set[str] | None:
        """Names bound in the body of class ``name`` of the top level; None when there is no such class."""
        try:
            body = self._class(self._whole, name)
            return self._names(body) if body else None
        except (_Doubt, SyntaxError):
            text = _parsed(self.source, name)
            nodes = ast.parse(text).body if text is not None else []
            if not nodes or not isinstance(nodes[0], ast.ClassDef):
                return None
            return {bound for node in nodes[0].body for bound in _bound(node)}

    def names(self) -> set[str]:
        """Names bound at the top level."""
        try:
            return self._names(self._whole)
        except (_Doubt, SyntaxError):
            return {name for node in ast.parse(self.source).body for name in _bound(node)}

    def _class(self, part: _Part, name: str) -> _Part | None:
        """The class ``name`` defined right inside ``part``, from its own first line on."""
        if (part, name) not in self._classes:
            begin = self._head(part, name)
            if begin is not None and not self.source.startswith("class", begin + len(part.indent)):
                begin = None  # a function
            self._classes[part, name] = None if begin is None else self._class_part(part, begin)
        return self._classes[part, name]

    def _class_part(self, part: _Part, begin: int) -> _Part:
        lines = _leaving(part.indent).finditer(self.source, begin, part.end)
        end = next((line.start() for line in lines if not self._in_string(line.start())), part.end)
        if self._in_string(end):  # triple quotes that are none: counting them tells nothing
            raise _Doubt
        heads = _INDENT.finditer(self.source, begin, end)
        first = next((head for head in heads if not self._in_string(head.start())), None)
        return _Part(begin, end, first[1] if first else "    ")

    def _head(self, part: _Part, name: str) -> int | None:
        """Where the definition of ``name`` right inside ``part`` begins."""
        found = [*self._lines(part, f"def {name}"), *self._lines(part, f"class {name}")]
        if len(found) > 1 or (found and self._in_string(found[0])):
            raise _Doubt
        return found[0] if found else None

    def _lines(self, part: _Part, words: str) -> list[int]:
        """Where lines right inside ``part`` begin that begin with ``words``."""
        found = []
        at = self.source.find(words, part.begin, part.end)
        while at >= 0:
            line = self.source.rfind("\n", 0, at) + 1
            before = self.source[line:at]
            whole = not _WORD.match(self.source, at + len(words))  # else it is a longer name
            if whole and before in (part.indent, f"{part.indent}async "):
                found.append(line)
            at = self.source.find(words, at + 1, part.end)
        return found

    @functools.cached_property
    def _quotes(self) -> list[list[int]]:
        """Where triple quotes stand, of either kind."""
        return [[found.start() for found in re.finditer(kind, self.source)] for kind in ('"""', "'''")]

    def _in_string(self, position: int) -> bool:
        # An odd number of triple quotes before it: inside a docstring, or near enough to make sure.
        return any(bisect.bisect_left(quotes, position) % 2 for quotes in self._quotes)

    def _block(self, part: _Part, begin: int) -> str:
        """The definition that begins there, up to a line that leaves it, in no string and no brackets."""
        leaves = _leaving(part.indent).finditer(self.source, begin, part.end)
        ends = itertools.chain((line.start() for line in leaves), [part.end])
        for end in itertools.islice(ends, 8):
            if not self._in_string(end) and _closed(self.source[begin:end]):
                return _without_tail(self.source[begin:end])[len(part.indent) :]
        raise _Doubt

    def _names(self, part: _Part) -> set[str]:
        """Definitions by their first lines; everything else at that depth parsed, which is little."""
        found: set[str] = set()
        rest: list[str] = []
        bases = _CLASS.match(self.source, part.begin) if part.indent else None
        done = bases.end() if bases else part.begin
        skipping = bool(part.indent)  # the head of the class itself
        for line in _starting(part.indent).finditer(self.source, done, part.end):
            begin = line.start()
            if not skipping:
                rest.append(self.source[done:begin])
            done = begin
            head = _HEAD.match(self.source, line.end())
            skipping = head is not None or self.source[line.end()] == "@"
            if skipping and self._in_string(begin):
                raise _Doubt
            if head:
                found.add(head[1])
        if not skipping:
            rest.append(self.source[done : part.end])
        if not (found or rest):
            raise _Doubt
        text = "".join(rest)
        nodes = ast.parse(f"if 1:{text}\n{part.indent}pass" if part.indent else text).body
        return found | {name for node in nodes for name in _bound(node)}


def head(definition: str) -> str:
    """The lines ``definition`` begins with, up to the first colon that ends one outside of brackets."""
    colons = (colon.end() for colon in _COLON.finditer(definition))
    return next((definition[:end] for end in colons if _closed(definition[:end])), definition)


@functools.cache
def _leaving(indent: str) -> re.Pattern[str]:
    """The end of a line after which one stands no deeper than ``indent``."""
    return re.compile(rf"\n[ \t]{{0,{len(indent)}}}{_TELLS}")


@functools.cache
def _starting(indent: str) -> re.Pattern[str]:
    return re.compile(rf"\n{indent}{_TELLS}")


def _closed(text: str) -> bool:
    """Whether no bracket is open where ``text`` ends."""
    # Those in strings and comments come in pairs, mostly.
    return _paired(text) or _paired(_WORDS.sub("", text))


def _paired(text: str) -> bool:
    return all(text.count(a) == text.count(b) for a, b in ("()", "[]", "{}"))


def _without_tail(text: str) -> str:
    """Without the empty lines and comments that come after the last statement."""
    lines = text.rstrip().split("\n")
    while lines[-1].lstrip().startswith("#") or not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)


def _parsed(source: str, qualname: str) -> str | None:
    node: ast.AST = ast.parse(source)
    for part in qualname.split("."):
        body: list[ast.AST] = getattr(node, "body", [])
        found = [child for child in body if getattr(child, "name", None) == part]
        if not found:
            return None
        node = found[-1]
    return ast.get_source_segment(source, node)


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
