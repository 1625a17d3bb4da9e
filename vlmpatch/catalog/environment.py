"""The ``VLMPATCH_`` names of the environment -> settings.

What cannot be understood is reported and ignored: a typing error in an environment variable never
ends a training job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from vlmpatch.catalog.model import Problem

NAMES = (
    "VLMPATCH_DISABLE",
    "VLMPATCH_LOCK",
    "VLMPATCH_LOG",
    "VLMPATCH_SETS",
    "VLMPATCH_STRICT",
    "VLMPATCH_WATCH",
)
_PREFIX = "VLMPATCH"
_OF_THE_TESTS = (
    "_FULL",
    "_GOLDEN",
    "_LAB",
    "_MINICPMV",
    "_SOURCES",
)  # and what begins so: never read here, and no mistake
OUTDATED = "Write the new id: the next minor release does not know the old one"
LEVELS = ("debug", "info", "warning", "error", "off")
_NONE: Mapping[str, str] = MappingProxyType({})
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class Settings(NamedTuple):
    """What the environment asks for; ``disable`` holds known patch ids only."""

    disable: frozenset[str] = frozenset()
    strict: bool = False
    log: str = "warning"
    watch: bool = False
    lock: str = ""
    problems: tuple[Problem, ...] = ()


def read(environ: Mapping[str, str], known: Collection[str], renamed: Mapping[str, str] = _NONE) -> Settings:
    """Settings from ``environ``.

    Args:
        environ: the environment variables.
        known: the ids of the catalog, against which VLMPATCH_DISABLE is checked.
        renamed: by each former id, the one it stands for.
    """
    problems = list(_unknown(environ))
    return Settings(
        disable=_disable(environ.get("VLMPATCH_DISABLE", ""), known, renamed, problems),
        strict=_switch("VLMPATCH_STRICT", environ, problems),
        log=_log(environ.get("VLMPATCH_LOG", "warning"), problems),
        watch=_switch("VLMPATCH_WATCH", environ, problems),
        lock=environ.get("VLMPATCH_LOCK", "").strip(),
        problems=tuple(problems),
    )


def sets(environ: Mapping[str, str]) -> list[str]:
    """The patch sets of others that VLMPATCH_SETS names."""
    return list(dict.fromkeys(environ.get("VLMPATCH_SETS", "").replace(",", " ").split()))


def _unknown(environ: Mapping[str, str]) -> Iterator[Problem]:
    for name in sorted(environ):
        ours = name.startswith(_PREFIX) and not name.removeprefix(_PREFIX).startswith(_OF_THE_TESTS)
        if ours and name not in NAMES:
            remedy = f"{suggestion(name, NAMES)}It has no effect; there are {', '.join(NAMES)}"
            yield Problem(name, "no variable of this name is read", remedy)


def disabled(
    environ: Mapping[str, str], known: Collection[str], renamed: Mapping[str, str]
) -> frozenset[str]:
    """The patches of ``known`` that VLMPATCH_DISABLE names, by an id or by a former one."""
    return _disable(environ.get("VLMPATCH_DISABLE", ""), known, renamed, [])


def _disable(
    value: str, known: Collection[str], renamed: Mapping[str, str], problems: list[Problem]
) -> frozenset[str]:
    asked = {word for word in value.replace(",", " ").split() if word}
    if "all" in asked:
        return frozenset(known)
    for old in sorted(asked & renamed.keys()):
        problems.append(Problem("VLMPATCH_DISABLE", f"{old!r} has become {renamed[old]!r}", OUTDATED))
    asked = {renamed.get(word, word) for word in asked}
    for word in sorted(each for each in asked - set(known) if "/" not in each):
        # One with a slash is of a patch set of others, which may be switched on later.
        remedy = f"{suggestion(word, known)}`python -m vlmpatch list` prints the ids; `all` means every one"
        problems.append(Problem("VLMPATCH_DISABLE", f"{word!r} is no patch id", remedy))
    return frozenset(asked & set(known))


def _switch(name: str, environ: Mapping[str, str], problems: list[Problem]) -> bool:
    value = environ.get(name, "")
    if value.strip().lower() in _TRUE:
        return True
    if value.strip().lower() not in _FALSE:
        problems.append(Problem(name, f"{value!r} is neither 1 nor 0", "Taken as 0"))
    return False


def _log(value: str, problems: list[Problem]) -> str:
    level = value.strip().lower()
    if level in LEVELS:
        return level
    what = f"{value!r} is no level"
    problems.append(Problem("VLMPATCH_LOG", what, f"Taken as warning; one of: {', '.join(LEVELS)}"))
    return "warning"


def suggestion(word: str, known: Collection[str]) -> str:
    """``Did you mean …? `` when ``word`` is close to a known id, else nothing."""
    import difflib

    near = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {near[0]!r}? " if near else ""
