"""What the engine, the gates and the patches say, in the language of a view.

They speak English wherever they run, in a training's log as in a lock. Here a sentence is known again by its
words: ``reasons.zh.toml`` has it with ``{}`` for what was filled in.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIELD = "{}"
_BETWEEN = {"; ": "；", ". ": "。", "? ": "？"}  # sentences, and clauses that were put together
_ANY = "(.+?)"
SPLIT = re.compile(r"(; |(?<=[^.])\. |(?<=\?) )")


def chinese(english: str) -> str:
    """``english`` in Chinese, clause by clause; what is not known stays as it is."""
    pieces = SPLIT.split(english)
    told = [_told(piece) for piece in pieces[::2]]
    if not any(told):
        return english
    said = [piece if known is None else known for piece, known in zip(pieces[::2], told, strict=True)]
    between = [*(_BETWEEN.get(mark, "") for mark in pieces[1::2]), ""]
    return "".join(text + mark for text, mark in zip(said, between, strict=True))


def _told(english: str) -> str | None:
    literal, patterns = _table()
    if english in literal:
        return literal[english]
    for pattern, chinese in patterns:
        if match := pattern.fullmatch(english):
            return chinese.format(*(literal.get(field, field) for field in match.groups()))
    return None


@functools.cache
def table() -> Mapping[str, str]:
    """The sentences by their English; none where the file is missing or broken."""
    try:
        return tomllib.loads(Path(__file__).with_name("reasons.zh.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


@functools.cache
def _table() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """Those without a field, and patterns of the others, the wordiest first."""
    whole = {english: said for english, said in table().items() if FIELD not in english}
    others = sorted((english for english in table() if FIELD in english), key=lambda each: -len(each))
    patterns = [re.compile(_ANY.join(map(re.escape, each.split(FIELD)))) for each in others]
    return whole, [(pattern, table()[each]) for pattern, each in zip(patterns, others, strict=True)]
