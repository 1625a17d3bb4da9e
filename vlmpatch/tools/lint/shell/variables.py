"""What a word of a script stands for: its variables filled in, as far as the script itself says them.

What the script does not say (the environment, the output of a command) is left as it is written.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence

from vlmpatch.tools.lint import unread
from vlmpatch.tools.lint.shell import arithmetic
from vlmpatch.tools.lint.shell.words import Part, Token, closed

BUDGET = 4 << 20  # characters that one reading may fill in: no script needs a tenth of it
DEEPEST = 8
_NAME = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#])")
_BODY = re.compile(r"(#?)([A-Za-z_]\w*|[0-9]+|[@*#])(\[[^\]]*\])?(.*)", re.DOTALL)
_DEFAULT = re.compile(r":?([-=+])(.*)", re.DOTALL)
_TRIM = re.compile(r"(##?|%%?)(.*)", re.DOTALL)
_SWAP = re.compile(r"(//?)((?:\\.|[^/\\])+)/?(.*)", re.DOTALL)
_STARTS = re.compile(r"[$`\\]")
_OWN_FOLDER = re.compile(r"""dirname[^()]{0,40}(?:\$0|\$\{0\}|BASH_SOURCE)[^()]{0,40}\)"?((?:/\.\.)*)""")
_CLOSERS = {"${": "}", "$(": ")", "`": "`"}
_SHORT = 400  # of a value that a pattern is taken from


class TooLarge(ValueError):
    """More than one reading may fill in."""


class Variables:
    """The variables of a script.

    Attributes:
        values: by name; an array has several, anything else one.
        arguments: ``$1``, ``$2`` …
        folder: that of the script.
    """

    def __init__(self, folder: str) -> None:
        self.values: dict[str, list[str]] = {}
        self.arguments: list[str] = []
        self.folder = folder
        self._left = BUDGET

    def spend(self, characters: int) -> None:
        """Count what is read.

        Raises:
            TooLarge: when it is more than one reading may take.
        """
        self._left -= characters
        if self._left < 0:
            raise TooLarge(unread.TOO_MUCH)

    def assign(self, name: str, values: Sequence[str], more: bool, array: bool) -> None:
        """``name=value``, ``name+=value`` or the same of an array."""
        held = self.values.get(name, []) if more else []
        made = [*held, *values] if array or not held else ["".join([held[0], *values]), *held[1:]]
        self.spend(1 + sum(map(len, made)))
        self.values[name] = made

    def text(self, token: Token) -> str:
        """The word as one, as an assignment takes it."""
        return "".join(" ".join(value) for part in token.parts for value, _ in self._pieces(part, 0))

    def words(self, token: Token) -> list[str]:
        """The words that the word stands for: none, one or several."""
        found: list[str] = []
        open_ = False  # whether what follows belongs to the last of ``found``
        for part in token.parts:
            for values, splits in self._pieces(part, 0):
                if splits:
                    text = " ".join(values)
                    ends, values = (text[:1].isspace(), text[-1:].isspace()), text.split()
                else:
                    ends = (False, False)
                open_ = open_ and not ends[0]
                for number, value in enumerate(values):
                    if open_ and number == 0:
                        found[-1] += value
                    else:
                        found.append(value)
                open_ = (open_ or bool(values)) and not ends[1]
        self.spend(sum(len(word) + 1 for word in found))
        return found

    def _pieces(self, part: Part, depth: int) -> Iterator[tuple[list[str], bool]]:
        """Values, and whether blanks in them part words."""
        if part.quote == "'":
            yield [part.text], False
            return
        text, at, quoted = part.text, 0, part.quote == '"'
        while match := _STARTS.search(text, at):
            if match.start() > at:
                yield [text[at : match.start()]], False
            if match[0] == "\\":
                at = match.start() + 2
                yield [_unescaped(text[match.start() : at])], False
                continue
            at, values, known = self._filled(text, match.start(), depth)
            yield values, known and not quoted
        if at < len(text) or not text:
            yield [text[at:]], False

    def _filled(self, text: str, start: int, depth: int) -> tuple[int, list[str], bool]:
        """What begins at ``start``: where it ends, what it stands for, and whether that is known."""
        if match := _NAME.match(text, start):
            values = self._value(match[1])
            return match.end(), [match[0]] if values is None else values, values is not None
        opener = "`" if text[start] == "`" else text[start : start + 2]
        closer = _CLOSERS.get(opener)
        end = closed(text, start + len(opener), closer) if closer else -1
        if end < 0:
            return start + 1, [text[start]], False
        whole = text[start:end]
        self.spend(len(whole))
        values = None if depth > DEEPEST else self._bracket(whole, opener, depth)
        return end, [whole] if values is None else values, values is not None

    def _bracket(self, whole: str, opener: str, depth: int) -> list[str] | None:
        if opener == "${":
            return self._parameter(whole[2:-1], depth)
        if whole.startswith("$((") and whole.endswith("))"):
            made = arithmetic.result(self._inner(whole[3:-2], depth), self._number)
            return None if made is None else [str(made)]
        if whole in ("$(pwd)", "`pwd`"):
            return ["."]
        if match := _OWN_FOLDER.search(whole):
            return [os.path.abspath(self.folder + match[1])]
        return None

    def _inner(self, text: str, depth: int) -> str:
        pieces = self._pieces(Part(text, '"'), depth + 1)
        return "".join(" ".join(values) for values, _ in pieces)

    def _number(self, name: str) -> str:
        return " ".join(self.values.get(name, [name]))

    def _value(self, name: str, index: str = "") -> list[str] | None:
        if name in ("@", "*"):
            return list(self.arguments)
        if name == "#":
            return [str(len(self.arguments))]
        if name.isdigit():
            given = self.arguments[int(name[:4]) - 1 : int(name[:4])] if int(name[:4]) else []
            return given or None
        values = self.values.get(name)
        if values is None:
            return ["."] if name == "PWD" else None
        if index in ("[@]", "[*]"):
            return values
        place = int(index[1:-1]) if re.fullmatch(r"\[\d{1,4}\]", index) else 0 if not index else len(values)
        return values[place : place + 1] or None

    def _parameter(self, body: str, depth: int) -> list[str] | None:
        match = _BODY.fullmatch(body)
        if match is None:
            return None
        counts, name, index, rest = match[1], match[2], match[3] or "", match[4]
        values = self._value(name, index)
        if counts:
            several = index in ("[@]", "[*]")
            return None if values is None else [str(len(values) if several else len("".join(values)))]
        if default := _DEFAULT.fullmatch(rest):
            empty = values is None or (rest[0] == ":" and not any(values))
            return self._default(name, values, empty, default[1], default[2], depth)
        if values is None or not rest or rest[0] == "?" or rest[:2] == ":?":
            return values
        self.spend(sum(20 * len(value) for value in values))  # each beginning of each is compared
        changed = [_changed(value, rest, self._inner(rest, depth)) for value in values]
        return None if None in changed else [value for value in changed if value is not None]

    def _default(
        self, name: str, values: list[str] | None, empty: bool, sign: str, text: str, depth: int
    ) -> list[str] | None:
        if sign == "+":
            return [] if empty else [self._unquoted(text, depth)]
        if not empty:
            return values
        made = [self._unquoted(text, depth)]
        if sign == "=":
            self.assign(name, made, more=False, array=False)
        return made

    def _unquoted(self, text: str, depth: int) -> str:
        if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
            text = text[1:-1]
        return self._inner(text, depth)


def _unescaped(text: str) -> str:
    if text == "\\\n":
        return ""
    return text[1:] if text[1:] in ('"', "\\", "$", "`") else text


def _changed(value: str, raw: str, rest: str) -> str | None:
    """``${X#…}``, ``${X%…}`` and ``${X//…/…}`` of a short value; None for what else there is."""
    if len(value) > _SHORT or len(rest) > _SHORT:
        return None
    if trim := _TRIM.fullmatch(rest):
        return _trimmed(value, trim[1], trim[2])
    if swap := _SWAP.fullmatch(raw):
        old, new = re.sub(r"\\(.)", r"\1", swap[2]), swap[3]
        if re.search(r"[*?\[$]", old):
            return None
        return value.replace(old, new) if swap[1] == "//" else value.replace(old, new, 1)
    return None


def _trimmed(value: str, sign: str, pattern: str) -> str:
    front, matches = sign[0] == "#", re.compile(fnmatch.translate(pattern)).match
    lengths = range(len(value) + 1) if len(sign) == 1 else range(len(value), -1, -1)
    for length in lengths:
        cut = value[:length] if front else value[len(value) - length :]
        if matches(cut):
            return value[length:] if front else value[: len(value) - length]
    return value
