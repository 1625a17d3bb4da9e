"""A shell script as words and operators: quotes, comments and here-documents understood, nothing expanded.

``shlex`` does not do: it ends a word at a ``#`` inside it, and drops the quotes that decide what is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from vlmpatch.tools.lint import unread

_BLANK = re.compile(r"(?:[ \t\r\f\v]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_OPERATOR = re.compile(r"[0-9]*(?:<<<|<<-?|>>|[<>]&|<>|>\||[<>])|&>>?|\n|;;&?|;&|;|&&|\|\||\|&|&|\||[()]")
_BLANK_TO_FILL = re.compile(r"<[A-Za-z][\w./-]*>(?=\s|$)")  # <PATH-TO-MODEL>, as examples have it
_PLAIN = re.compile(r"[^ \t\r\f\v\n\\\"'`$<>|&;()]+")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_SPECIAL = re.compile(r"\\.|\$\(|\$\{|[\"'`()}]", re.DOTALL)
_CLOSES = {"$(": ")", "${": "}", '"': '"', "`": "`", "(": ")"}
REDIRECTIONS = frozenset(["<", ">", ">>", ">&", "<&", "<>", ">|", "&>", "&>>", "<<<"])


class Unclosed(ValueError):
    """A quote or a bracket that nothing closes; ``line`` is where it opens."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.line = line


class Part(NamedTuple):
    """A piece of a word in one kind of quotes: ``"``, ``'`` or none."""

    text: str
    quote: str


class Token(NamedTuple):
    """A word, or where it has no ``parts`` an operator; ``elements`` are those of an assigned array."""

    line: int
    operator: str
    parts: tuple[Part, ...] = ()
    elements: tuple[Token, ...] | None = None

    @property
    def bare(self) -> str:
        """The word where nothing in it is quoted, else nothing."""
        return self.parts[0].text if len(self.parts) == 1 and not self.parts[0].quote else ""


class Lexer:
    """Reads ``text`` once, from its beginning to its end.

    Args:
        text: of a script.
        line: the number of its first line.
    """

    def __init__(self, text: str, line: int = 1) -> None:
        self.text = text
        self.at = 0
        self.line = line
        self._awaited: list[tuple[str, bool]] = []  # delimiters of here-documents, and whether tabs go

    def tokens(self) -> Iterator[Token]:
        """Every word and operator.

        Raises:
            Unclosed: where the shell would say so; what was read until then has been given.
        """
        delimits = ""
        while (token := self._next()) is not None:
            if token.operator in ("<<", "<<-"):
                delimits = token.operator
                continue
            if delimits:
                self._awaited.append(("".join(part.text for part in token.parts), delimits == "<<-"))
                delimits = ""
                continue
            yield token
            if token.operator == "\n":
                self._skip_documents()

    def _next(self) -> Token | None:
        self._pass(_BLANK)
        self._pass(_COMMENT)
        if self.at >= len(self.text):
            return None
        if match := _BLANK_TO_FILL.match(self.text, self.at):
            self._to(match.end())
            return Token(self.line, "", (Part(match[0], "'"),))
        if match := _OPERATOR.match(self.text, self.at):
            token = Token(self.line, match[0].lstrip("0123456789"))
            self._to(match.end())
            return token
        return self._word()

    def _pass(self, pattern: re.Pattern[str]) -> None:
        if match := pattern.match(self.text, self.at):
            self._to(match.end())

    def _to(self, end: int) -> None:
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def _word(self) -> Token:
        line, parts = self.line, list[Part]()
        while self.at < len(self.text) and (part := self._part()) is not None:
            parts.append(part)
            opens = len(parts) == 1 and not part.quote and self.text[self.at : self.at + 1] == "("
            if opens and _ARRAY.fullmatch(part.text):
                return Token(line, "", (part,), self._elements())
        return Token(line, "", tuple(_merged(parts)))

    def _elements(self) -> tuple[Token, ...]:
        line = self.line
        self._to(self.at + 1)
        found: list[Token] = []
        while (token := self._next()) is not None:
            if token.operator == ")":
                return tuple(found)
            if token.parts:
                found.append(token)
        raise Unclosed(unread.BRACKET, line)

    def _part(self) -> Part | None:
        start, sign = self.at, self.text[self.at]
        if match := _PLAIN.match(self.text, start):
            self._to(match.end())
            return Part(match[0], "")
        if sign == "\\":
            self._to(min(start + 2, len(self.text)))
            escaped = self.text[start + 1 : self.at]
            return Part("", "") if escaped == "\n" else Part(escaped, "'")
        if sign == "'":
            end = self.text.find("'", start + 1)
            return Part(self._taken(start + 1, end, end + 1), "'")
        if sign == '"':
            end = closed(self.text, start + 1, '"')
            return Part(self._taken(start + 1, end - 1, end), '"')
        if sign in "$`":
            return self._dollar(start, sign)
        return None

    def _dollar(self, start: int, sign: str) -> Part:
        opener = self.text[start : start + 2] if sign == "$" else sign
        if opener in ("$'", '$"'):
            self.at += 1
            made = self._part()
            return made or Part("", "'")
        if opener not in _CLOSES:
            self._to(start + 1)
            return Part(sign, "")
        end = closed(self.text, start + len(opener), _CLOSES[opener])
        return Part(self._taken(start, end, end), "")

    def _taken(self, start: int, end: int, behind: int) -> str:
        if end < start:
            line = self.line
            self._to(len(self.text))
            raise Unclosed(unread.QUOTE, line)
        self._to(behind)
        return self.text[start:end]

    def _skip_documents(self) -> None:
        for delimiter, tabs in self._awaited:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                row = self.text[self.at : end if end >= 0 else len(self.text)]
                self._to(end + 1 if end >= 0 else len(self.text))
                if (row.lstrip("\t") if tabs else row).rstrip("\r") == delimiter:
                    break
        self._awaited.clear()


def _merged(parts: list[Part]) -> Iterator[Part]:
    """Neighbours of the same quotes as one, so that ``a${b}c`` is one part."""
    held: list[str] = []
    for number, part in enumerate(parts):
        held.append(part.text)
        if number + 1 == len(parts) or part.quote or parts[number + 1].quote:
            yield Part("".join(held), part.quote)
            held = []


def closed(text: str, start: int, closer: str) -> int:
    """The index behind the ``closer`` of what has been opened before ``start``; -1 where it is not closed."""
    awaited, at = [closer], start
    while match := _SPECIAL.search(text, at):
        sign, at, inner = match[0], match.end(), awaited[-1]
        if sign == inner:
            awaited.pop()
            if not awaited:
                return at
        elif sign == "'" and inner in ")`":
            at = text.find("'", at) + 1
            if at == 0:
                return -1
        elif sign in ('"', "`", "$(", "${") or (sign == "(" and inner == ")"):
            awaited.append(_CLOSES[sign])
    return -1
