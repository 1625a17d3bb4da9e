"""``$((…))``: whole numbers, names, brackets and the four operations."""

from __future__ import annotations

import re
from collections.abc import Callable

LONGEST = 400
DEEPEST = 20
_WORD = re.compile(r"\w+|[*+/()-]|(\S)")


def result(text: str, value: Callable[[str], str]) -> int | None:
    """What the shell makes of ``text``; None where it is more than that, or not known.

    Args:
        text: between the brackets.
        value: of a variable.
    """
    if len(text) > LONGEST or text.count("(") > DEEPEST:
        return None
    found = list(_WORD.finditer(text))
    if any(match[1] for match in found):
        return None
    words = [value(match[0]) if match[0][0].isalpha() or match[0][0] == "_" else match[0] for match in found]
    try:
        made = _total(words)
    except (ValueError, IndexError, ZeroDivisionError, RecursionError):
        return None
    return None if words else made


def _total(words: list[str]) -> int:
    value = _product(words)
    while words and words[0] in "+-":
        value = value + _product(words) if words.pop(0) == "+" else value - _product(words)
    return value


def _product(words: list[str]) -> int:
    value = _atom(words)
    while words and words[0] in "*/":
        value = value * _atom(words) if words.pop(0) == "*" else value // _atom(words)
    return value


def _atom(words: list[str]) -> int:
    word = words.pop(0)
    if word == "-":
        return -_atom(words)
    if word != "(":
        return int(word)
    inner = _total(words)
    words.pop(0)
    return inner
