"""Words that symptoms share, from ``vocabulary.toml``: groups, how people tell of a failure, and engines."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NEAR = 240  # characters in which words that belong together stand
SOON = 28  # characters in which the second word of `a~b` begins
HEARD = 64  # texts that every symptom which is told of is held against, one after another
_QUOTES = str.maketrans({"\u2019": "'", "`": ""})
# A line of a configuration or of a launch that is one setting, or an object that is printed with its many.
_SETTING = re.compile(
    r"\s*(?:--[a-z0-9]{1,40}(?:[_-][a-z0-9]{1,40}){1,12}(?:[ =]{1,8}[^\s]{1,200})?"
    r"|[\"']?[a-z0-9]{1,40}(?:_[a-z0-9]{1,40}){1,12}[\"']?\s{0,40}:\s{0,40}[^\s]{1,200})\s{0,8}[,\\]?\s*"
    r"|_?[a-z0-9]{1,40}(?:_[a-z0-9]{1,40}){1,12}=[^\n]{1,400},"
    r"|[^(\n]{0,200}\((?:[a-z_][a-z0-9_]{0,80}=[^=\n]{0,400}, ?){8,400}[^\n]*"
)
# A line that programs print as they run: it is in the logs of all who run them.
_PRINTED = re.compile(
    r"[^\n]{0,300}\.py:\d{1,6}: \w{1,40}warning: |\s*warnings\.warn\("
    r"|[^\n]{0,120}\d{1,3}%\|[^\n]{0,300}/s(?:ec)?(?:ond)?[^\w]{0,4}$"
    r"|[^\n]{0,60}\[(?:info|debug)[\]|]|\s*use_cache=true is incompatible with"
    r"|triton not installed or not compatible"
)
_WORD = re.compile("[0-9a-z_]")
_FRACTION = re.compile("[.]?[0-9]{0,20}[1-9]")
_GROUP = re.compile(r"<([a-z]+(?:-[a-z]+)*)>")


class Engine(NamedTuple):
    """By what a log shows that a run was under it: what was run or given, and what was only named.

    ``either``: engines of which it is one.
    """

    runs: tuple[str, ...]
    named: tuple[str, ...]
    either: tuple[str, ...] = ()


class Vocabulary(NamedTuple):
    """Groups of words by their names, and engines by theirs."""

    words: dict[str, tuple[str, ...]]
    told: dict[str, tuple[str, ...]]
    engines: dict[str, Engine]

    def spelled(self, texts: Iterable[str]) -> tuple[str, ...]:
        """``texts``, each once for every word of the group that it names.

        Raises:
            ValueError: there is no such group.
        """
        return tuple(word for text in texts for word in self._spelled(text))

    def stems(self, texts: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """Each of ``texts``, a group or ``a|b``, as the stems of which one is asked for, in lower case.

        Raises:
            ValueError: there is no such group.
        """
        return tuple(
            tuple(stem.lower() for part in text.split("|") for stem in self._stems(part)) for text in texts
        )

    def _spelled(self, text: str) -> tuple[str, ...]:
        named = _GROUP.search(text)
        if named is None:
            return (text,)
        return tuple(text.replace(named[0], word) for word in _known(named[1], self.words))

    def _stems(self, text: str) -> tuple[str, ...]:
        named = _GROUP.fullmatch(text)
        return _known(named[1], self.told) if named else (text,)


def _known(name: str, groups: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if name not in groups:
        raise ValueError(f"<{name}> is no group of words; known: {', '.join(sorted(groups))}")
    return groups[name]


@functools.cache
def read() -> Vocabulary:
    """The vocabulary."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "vocabulary.toml"), "rb") as handle:
        table = tomllib.load(handle)
    engines = {
        name: Engine(_lower(engine["runs"]), _lower(engine["named"]), tuple(engine.get("either", ())))
        for name, engine in table["engines"].items()
    }
    words, told = ({name: tuple(group) for name, group in table[kind].items()} for kind in ("words", "told"))
    return Vocabulary(words, told, engines)


def _lower(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word.lower() for word in words)


def under(where: Mapping[str, int]) -> set[str]:
    """The engines that a run may have been under: one, or those of a family that are shown alike.

    People who write that ZeRO-3 fails say that ZeRO-2 does not.

    Args:
        where: words that were found, in lower case, and the place of each.
    """
    engines = read().engines
    found = sorted(
        (strength, where[word], name)
        for name, each in engines.items()
        for strength, words in enumerate((each.runs, each.named))
        for word in words
        if word in where
    )
    if not found:
        return {"unknown"}
    first = found[0][2]
    families = [
        each.either for name, each in engines.items() if each.either and first in (name, *each.either)
    ]
    single = [(strength, name) for strength, _, name in found if any(name in either for either in families)]
    return {name for strength, name in single if strength == single[0][0]} or {first}


def tells(text: str, groups: Iterable[tuple[str, ...]], near: int = NEAR, title: str = "") -> bool:
    """Whether a stem of each group begins a word of ``text``, all ``near`` one another, or in ``title``."""
    plain, above = _plain(text), _plain(title)
    missing = [stems for stems in groups if not any(_found(above, stem) for stem in stems)]
    if not missing:
        return True
    first, *rest = ([at for stem in stems for at in _begins(plain, stem)] for stems in missing)
    return any(all(any(abs(at - other) <= near for other in others) for others in rest) for at in first)


@functools.lru_cache(maxsize=HEARD)
def _plain(text: str) -> str:
    return " ".join(" ".join(map(_spoken, text.lower().translate(_QUOTES).split("\n"))).split())


def printed(line: str) -> bool:
    """Whether ``line`` is one that programs print as they run."""
    return bool(_PRINTED.match(line.lower()))


def _spoken(line: str) -> str:
    """``line``, or as many dots where it is a setting, or printed: what that holds is nobody's word."""
    return "." * len(line) if _SETTING.fullmatch(line) or _PRINTED.match(line) else line


def _found(plain: str, stem: str) -> bool:
    return next(iter(_begins(plain, stem)), None) is not None


def _begins(plain: str, stem: str) -> Iterable[int]:
    first, _, then = stem.partition("~")
    return _placed(plain, first, then) if first.rstrip(" ") in plain else ()  # most are nowhere in it


def _placed(plain: str, stem: str, then: str) -> Iterable[int]:
    for at in _occurs(plain, stem):
        if not then or next(iter(_occurs(plain[at + 1 : at + SOON + len(then)], then)), None) is not None:
            yield at


def _occurs(plain: str, stem: str) -> Iterable[int]:
    bare = stem.rstrip(" ")
    at = plain.find(bare)
    while at >= 0:
        goes_on = (bare != stem and _WORD.match(plain, at + len(bare))) or (
            bare[-1] == "0" and _FRACTION.match(plain, at + len(bare))
        )
        if not goes_on and not _inside(plain[at - 1] if at else "", stem):
            yield at
        at = plain.find(bare, at + 1)


def _inside(before: str, stem: str) -> bool:
    """Whether a word goes on with ``stem`` after ``before``.

    What follows a number is its unit, a word; words that are joined by `_` may be joined to another. The end
    of a word (``'t``) begins in one, not behind a quotation mark.
    """
    if stem[0] == "'":
        return not before.isalpha()
    if not (before and before.isascii() and stem[0].isascii() and stem[0].isalnum()):
        return False
    return before.isalpha() or (before == "_" and "_" not in stem) or (before.isdigit() and stem[0].isdigit())
