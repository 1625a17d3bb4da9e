"""What a view is made of, and how it gets to a terminal (rich, where it is installed) or a pipe (plain)."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TextIO

WIDTH = 80  # of plain text; a terminal may be wider, lines of words are not
# A word, a Chinese character, each with the marks that may not end or begin a line; or a space.
_UNITS = re.compile(
    r"[\uff08\u300a\u300c\u201c]*(?:[^\s\u2e80-\u9fff\uff00-\uffef]+|[\u2e80-\u9fff\uff00-\uffef])[\u3001\u3002\uff01\uff09\uff0c\uff1a\uff1b\uff1f]*|\s+"
)
_STYLES = {"head": "bold", "bad": "bold red", "good": "green", "warn": "yellow", "dim": "dim", "code": "cyan"}


class _Part(NamedTuple):
    label: str
    text: str
    style: str
    whole: bool  # a command: it is copied, so it is never broken


class Page:
    """Lines of a view, in order."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def add(self, text: str = "", style: str = "", label: str = "") -> None:
        """A paragraph, after ``label`` where there is one; one that begins with a tab goes below it."""
        self._parts.append(_Part(label, text, style, False))

    def code(self, text: str, label: str = "") -> None:
        """A line to copy."""
        self._parts.append(_Part(label, text, "code", True))

    def lines(self, width: int = WIDTH) -> Iterator[tuple[str, str, str]]:
        """Label with its padding, text and style, line by line."""
        indent = max((columns(part.label) + 2 for part in self._parts if part.label), default=0)
        for part in self._parts:
            text = part.text.lstrip(" \t")
            behind = indent if part.label or part.text.startswith("\t") else 0
            margin = behind + len(part.text) - len(part.text.lstrip(" "))
            first = part.label + " " * (margin - columns(part.label))
            for line in text.splitlines() if part.whole else wrapped(text, max(20, width - margin)):
                yield first, line, part.style
                first = " " * margin

    def text(self) -> str:
        """The page without any colour."""
        return "\n".join((first + line).rstrip() for first, line, _ in self.lines())

    def show(self, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        """Print the page: in colour on a terminal that wants it."""
        console = _console(stream, environ)
        if console is None:
            print(self.text(), file=stream)
            return
        from rich.text import Text

        for first, line, style in self.lines(min(100, max(40, shutil.get_terminal_size().columns))):
            row = Text.assemble((first, "bold"), (line, _STYLES.get(style, "")))
            console.print(row, soft_wrap=True, highlight=False, markup=False)


def _console(stream: TextIO, environ: Mapping[str, str]) -> Any:
    if not stream.isatty() or environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream)


def columns(text: str) -> int:
    """How many columns of a terminal ``text`` takes."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def wrapped(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` columns, broken at spaces and between Chinese characters."""
    lines, line, used = [], "", 0
    for word in _UNITS.findall(text):
        space = columns(word)
        if line and used + space > width:
            lines.append(line.rstrip())
            line, used = "", 0
        if line or not word.isspace():
            line, used = line + word, used + space
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def forgiving() -> None:
    """Have what a terminal cannot show printed as ``?`` rather than end in an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
