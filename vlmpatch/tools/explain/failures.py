"""``[[failure]]`` of compat.toml: what people see, why, what to do. Read by the command line only."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from vlmpatch.catalog.model import Catalog, Entry, Problem
from vlmpatch.tools.explain.symptoms import RELATIONS, WILDCARDS, Pattern, pattern

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KINDS = ("error", "echo", "hint", "perhaps")
# A frame as notebooks, rich and pytest write it, squeezed: `x.py:9, in f`, `x.py:9 in f`, `x.py in f(a)`.
_FRAME = re.compile(r"\.py(?::\d{1,7}[,:]?in[<_a-z]|in\w{1,80}\()")
_LISTS = ("all", "any", "not", "frames", "seen", "unseen", "patches")


class Symptom(NamedTuple):
    """One way in which a failure shows; ``compat.toml`` says what the keys ask for."""

    every: tuple[Pattern, ...] = ()
    some: tuple[Pattern, ...] = ()
    none: tuple[Pattern, ...] = ()
    frames: tuple[Pattern, ...] = ()
    seen: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    numbers: str = ""
    ranks: str = ""
    kind: str = "error"
    patches: tuple[str, ...] = ()
    words: tuple[bytes, ...] = ()  # of a hint, which nothing else draws attention to: text as it is printed

    @property
    def own(self) -> bool:
        """Whether this is about what vlmpatch itself prints."""
        return any(each.head.startswith("vlmpatch") for each in (*self.every, *self.some))

    def fits(self, squeezed: str) -> bool:
        """Whether the message ``squeezed`` (with its traceback) shows this; ``seen`` is not asked here."""
        if not all(each.within(squeezed) for each in self.every):
            return False
        if self.some and not any(each.within(squeezed) for each in self.some):
            return False
        if any(each.within(squeezed) for each in self.none):
            return False
        if self.numbers and not any(map(RELATIONS[self.numbers], self.every[0].occurrences(squeezed))):
            return False
        if not self.frames or self.unconfirmed(squeezed):
            return True
        return any(each.within(squeezed) for each in self.frames)

    def unconfirmed(self, squeezed: str) -> bool:
        """Whether frames are asked for, and the message came without any."""
        return bool(self.frames) and 'file"' not in squeezed and _FRAME.search(squeezed) is None


class Failure(NamedTuple):
    """One failure; the pairs are English and Chinese. A ``foreign`` one is none that vlmpatch ends."""

    id: str
    foreign: bool
    title: tuple[str, str]
    cause: tuple[str, str]
    advice: tuple[tuple[str, ...], tuple[str, ...]]
    symptoms: tuple[Symptom, ...]

    def patches(self, catalog: Catalog, symptom: Symptom | None = None) -> list[Entry]:
        """The patches that end this failure, or this symptom of it where it names some."""
        named = symptom.patches if symptom else ()
        return [
            entry
            for entry in catalog.entries.values()
            if (entry.id in named if named else self.id in entry.failures)
        ]


class Failures(NamedTuple):
    """All failures that are soundly written, and the problems of the others."""

    known: dict[str, Failure]
    problems: tuple[Problem, ...]


@functools.cache
def read(path: str) -> Failures:
    """The failures of the catalog at ``path``; never raises for what the file holds or lacks."""
    try:
        with open(path, "rb") as handle:
            return parse(tomllib.load(handle), path)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return Failures({}, ())  # the catalog itself reports this


def parse(data: Mapping[str, Any], path: str) -> Failures:
    """Validate the ``failure`` tables of ``data``; ``path`` is named in problems."""
    tables = data.get("failure", [])
    if not isinstance(tables, list):
        remedy = "Write each as [[failure]]"
        return Failures({}, (Problem(f"{path}, failure", "is not a list of tables", remedy),))
    known: dict[str, Failure] = {}
    problems: list[Problem] = []
    for number, table in enumerate(tables, 1):
        name = table.get("id") if isinstance(table, dict) else None
        where = f"{path}, failure {name!r}" if isinstance(name, str) else f"{path}, failure number {number}"
        try:
            failure = _failure(table)
            if failure.id in known:
                raise ValueError("id appears twice; give each failure its own")
            known[failure.id] = failure
        except ValueError as error:
            problems.append(Problem(where, str(error), "CONTRIBUTING.md describes the keys"))
    return Failures(known, tuple(problems))


def _failure(table: object) -> Failure:
    if not isinstance(table, dict):
        raise ValueError("is not a table; write it as [[failure]]")
    texts, lists = ("title", "title_zh", "cause", "cause_zh"), ("advice", "advice_zh")
    _known_keys(table, {"id", "foreign", *texts, *lists, "symptoms"})
    if not isinstance(foreign := table.get("foreign", False), bool):
        raise ValueError("foreign is neither true nor false")
    for key in ("id", *texts):
        if not isinstance(table.get(key), str) or not table[key].strip():
            raise ValueError(f"{key} is missing, empty or not a string")
    symptoms = table.get("symptoms", [])
    if not isinstance(symptoms, list):
        raise ValueError('symptoms is not a list of tables; write [{ all = ["…"] }]')
    return Failure(
        table["id"],
        foreign,
        (table["title"], table["title_zh"]),
        (table["cause"], table["cause_zh"]),
        (_strings(table, "advice"), _strings(table, "advice_zh")),
        tuple(_symptom(symptom, number) for number, symptom in enumerate(symptoms, 1)),
    )


def _symptom(table: object, number: int) -> Symptom:
    try:
        if not isinstance(table, dict):
            raise ValueError('is not a table; write { all = ["…"] }')
        _known_keys(table, {*_LISTS, "numbers", "ranks", "kind"})
        given = {key: _strings(table, key) for key in _LISTS}
        kind, numbers = table.get("kind", "error"), table.get("numbers", "")
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is unknown; one of: {', '.join(KINDS)}")
        if numbers and (not isinstance(numbers, str) or numbers not in RELATIONS or not given["all"]):
            raise ValueError(f"numbers asks for `all` and is one of: {', '.join(RELATIONS)}")
        if (ranks := table.get("ranks", "")) not in ("", "differ"):
            raise ValueError(f"ranks {ranks!r} is unknown; it can be: differ")
        if not given["all"] and not given["any"]:
            raise ValueError("all and any are both empty; one of them says what is seen")
        every, some, none, frames = (tuple(map(pattern, given[key])) for key in _LISTS[:4])
    except ValueError as error:
        raise ValueError(f"symptom {number}: {error}") from None
    words = _words(given["all"][:1] or given["any"]) if kind == "hint" else ()
    lists = (every, some, none, frames)
    return Symptom(*lists, given["seen"], given["unseen"], numbers, ranks, kind, given["patches"], words)


def _words(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(max(WILDCARDS.split(text), key=len).strip().encode() for text in texts)


def _known_keys(table: Mapping[str, Any], known: set[str]) -> None:
    if unknown := table.keys() - known:
        raise ValueError(f"{min(unknown)} is an unknown key; known: {', '.join(sorted(known))}")


def _strings(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError(f'{key} is not a list of strings; write ["…", "…"]')
    return tuple(value)
