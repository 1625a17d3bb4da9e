"""English and Chinese: which one to speak. The sentences are English in the code, Chinese in ``zh.toml``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from vlmpatch.tools.view import reasons

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LANGUAGES = ("en", "zh")
_MARKS = {": ": "\uff1a", ", ": "\uff0c", "; ": "\uff1b", " (": "\uff08", ")": "\uff09"}


def language(environ: Mapping[str, str]) -> str:
    """The language that the locale asks for."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "LANGUAGE"):
        if value := environ.get(name, ""):
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


class Words:
    """Says things in one language.

    Args:
        language: one of ``LANGUAGES``.
    """

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, english: str, **values: object) -> str:
        """``english``, or its translation, with ``values`` filled in."""
        text = english if self.language == "en" else _chinese().get(english, english)
        return text.format(**values) if values else text

    def told(self, english: str) -> str:
        """What the engine, a gate or a patch has said, in this language."""
        return english if self.language == "en" else reasons.chinese(english)

    def mark(self, english: str) -> str:
        """The mark, with its space, that stands between two parts of a line."""
        return english if self.language == "en" else _MARKS[english]

    def listed(self, items: Iterable[str]) -> str:
        """``items`` in one line."""
        return (", " if self.language == "en" else "\u3001").join(items)

    def bracketed(self, text: str) -> str:
        """``text`` in brackets, to follow a word."""
        return f"{self.mark(' (')}{text}{self.mark(')')}"

    def pick(self, pair: tuple[str, str]) -> str:
        """The one of an English and a Chinese text that is asked for."""
        return pair[self.language == "zh"]


@functools.cache
def _chinese() -> Mapping[str, str]:
    """The sentences of ``zh.toml`` by their English; none of them where the file is missing or broken."""
    try:
        return tomllib.loads(Path(__file__).with_name("zh.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
