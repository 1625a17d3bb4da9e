"""Finds one definition in a long source without parsing all of it.

Parsing a file of 6,000 lines takes 0.1 s, finding ``class X`` in it and parsing the twenty lines of one
method a thousandth of that. What the text leaves in doubt (a name defined twice, a ``def`` that may stand
inside a string) is decided by parsing the whole after all.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re

_INDENT = re.compile(r"^([ \t]+)(?:def |async def |class |@\w)", re.M)
_HEAD = re.compile(r"(?:async +def|def|class) +(\w+)")
_CLASS = re.compile(
    r"[ \t]*class\s+\w+\s*\([^()]*\)\s*:"
)  # with its bases, which may stand on lines of their own
_WORD = re.compile(r"\w")


class _Doubt(Exception):
    """The text alone does not say; the whole has to be parsed."""


def definition(source: str, qualname: str) -> str | None:
    """The text of function or class ``qualname``, without decorators and first indentation.

    Args:
        source: a module's.
        qualname: ``f``, ``Class`` or ``Class.method``; the last definition of a name wins.

    Returns:
        The text, or None when nothing of that name is defined there.

    Raises:
        SyntaxError: the source is not Python.
    """
    try:
        *classes, last = qualname.split(".")
        text, indent = source, ""
        for name in classes:
            inner = _class(text, name, indent)
            if inner is None:
                return None
            text, indent = inner
        found = _start(text, last, indent)
        return None if found is None else _block(text[found:], indent)
    except (_Doubt, SyntaxError):
        return _parsed(source, qualname)


def class_names(source: str, name: str) -> set[str] | None:
    """Names bound in the body of class ``name`` of the top level; None when there is no such class.

    Raises:
        SyntaxError: the source is not Python.
    """
    try:
        found = _class(source, name, "")
        return _scanned_names(*found) if found else None
    except (_Doubt, SyntaxError):
        text = _parsed(source, name)
        body = ast.parse(text).body if text is not None else []
        if not body or not isinstance(body[0], ast.ClassDef):
            return None
        return {bound for node in body[0].body for bound in _bound(node)}


def names(source: str) -> set[str]:
    """Names bound at the top level of ``source``.

    Raises:
        SyntaxError: the source is not Python.
    """
    try:
        return _scanned_names(source, "")
    except (_Doubt, SyntaxError):
        return {name for node in ast.parse(source).body for name in _bound(node)}


@functools.lru_cache(maxsize=32)  # several patches ask for methods of one class in turn
def _class(text: str, name: str, indent: str) -> tuple[str, str] | None:
    """The text of class ``name`` defined at that indentation, and its body's indentation."""
    found = _start(text, name, indent)
    if found is None or not text.startswith("class", found + len(indent)):
        return None
    inner = _class_text(text[found:], indent)
    return inner, _body_indent(inner)


def _start(text: str, name: str, indent: str) -> int | None:
    """Where the definition of ``name`` at that indentation begins."""
    found = []
    for keyword in ("def", "class", "async def"):
        head = f"\n{indent}{keyword} {name}"
        at = -1 if not text.startswith(head[1:]) else 0
        at = text.find(head, at + 1) if at < 0 else at
        while at >= 0:
            line = at + 1 if text[at] == "\n" else at
            if not _WORD.match(text, line + len(head) - 1):  # a longer name
                found.append(line)
            at = text.find(head, at + 1)
    if len(found) > 1 or (found and _in_string(text, found[0])):
        raise _Doubt
    return found[0] if found else None


def _class_text(text: str, indent: str) -> str:
    """The class ``text`` begins with, up to the next line that stands no deeper and in no string."""
    for line in re.finditer(rf"^(?!{indent}[ \t])[ \t]*[^\s)\]}}#]", text, re.M):
        if line.start() and not _in_string(text, line.start()):
            return text[: line.start()]
    return text


def _body_indent(text: str) -> str:
    """The indentation of a class's methods."""
    heads = (head for head in _INDENT.finditer(text) if not _in_string(text, head.start()))
    first = next(heads, None)
    return first[1] if first else "    "


def _in_string(text: str, position: int) -> bool:
    # An odd number of triple quotes before it: inside a docstring, or near enough to make sure.
    return any(text.count(quotes, 0, position) % 2 for quotes in ('"""', "'''"))


def _block(text: str, indent: str) -> str:
    """The one definition ``text`` begins with, up to the line that leaves it.

    The parser is asked where that line may stand inside a string or brackets.
    """
    leaves = re.compile(rf"\n[ \t]{{0,{len(indent)}}}(?=[^\s)\]}}#])")
    ends = itertools.chain((line.start() for line in leaves.finditer(text)), [len(text)])
    for end in itertools.islice(ends, 8):
        if _closed(text[:end]):
            return _without_tail(text[:end])[len(indent) :]
        try:
            return _parse_block(text[:end], indent)
        except SyntaxError:  # that line stands inside a string or brackets
            continue
    raise _Doubt


def _closed(text: str) -> bool:
    """Whether no long string and no bracket is open where ``text`` ends, as far as counting tells."""
    pairs = (("(", ")"), ("[", "]"), ("{", "}"))
    return not _in_string(text, len(text)) and all(text.count(a) == text.count(b) for a, b in pairs)


def _without_tail(text: str) -> str:
    """Without the empty lines and comments that come after the last statement."""
    lines = text.rstrip().split("\n")
    while lines[-1].lstrip().startswith("#") or not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)


def _parse_block(text: str, indent: str) -> str:
    tree = ast.parse(f"if 1:\n{text}" if indent else text)
    outer = tree.body[0]
    node = outer.body[0] if indent and isinstance(outer, ast.If) else outer
    shift = 1 if indent else 0
    lines = text.split("\n")[: (node.end_lineno or 0) - shift]
    # Columns are counted in bytes.
    lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()
    return "\n".join(lines)[len(indent) :]


def _parsed(source: str, qualname: str) -> str | None:
    node: ast.AST = ast.parse(source)
    for part in qualname.split("."):
        body: list[ast.AST] = getattr(node, "body", [])
        found = [child for child in body if getattr(child, "name", None) == part]
        if not found:
            return None
        node = found[-1]
    return ast.get_source_segment(source, node)


def _scanned_names(source: str, indent: str) -> set[str]:
    """Definitions by their first lines; everything else at that depth parsed, which is little."""
    found: set[str] = set()
    rest: list[str] = []
    skipping = bool(indent)  # the head of the class itself
    quotes, done = 0, 0
    bases = _CLASS.match(source) if indent else None
    at_depth = re.compile(rf"^{indent}(?=[^\s)\]}}#])", re.M)
    for line in at_depth.finditer(source, bases.end() if bases else 0):
        begin = line.start()
        if not skipping:
            rest.append(source[done:begin])
        quotes += source.count('"""', done, begin) + source.count("'''", done, begin)
        done = begin
        head = _HEAD.match(source, line.end())
        skipping = head is not None or source[line.end()] == "@"
        if skipping and quotes % 2:
            raise _Doubt
        if head:
            found.add(head[1])
    if not skipping:
        rest.append(source[done:])
    tree = ast.parse("if 1:\n" + "".join(rest) if indent else "".join(rest))
    body_nodes = tree.body
    if indent and body_nodes and isinstance(body_nodes[0], ast.If):
        body_nodes = body_nodes[0].body
    return found | {name for node in body_nodes for name in _bound(node)}


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
