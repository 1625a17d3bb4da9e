"""``failures/``, a file a failure: what people see, where, why, what to do. Read by the command line only."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from vlmpatch.catalog.model import Catalog, Entry, PatchSet, Problem
from vlmpatch.tools.explain import vocabulary
from vlmpatch.tools.explain.symptoms import CUT, LEFT, RELATIONS, WILDCARDS, Pattern, pattern

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KINDS = ("error", "echo", "hint", "perhaps", "cut", "told")
# A frame as notebooks, rich and pytest write it, squeezed: `x.py:9, in f`, `x.py:9 in f`, `x.py in f(a)`.
_FRAME = re.compile(r"\.py(?::\d{1,7}[,:]?in[<_a-z]|in\w{1,80}\()")
Pair = tuple[str, str]
_LISTS = ("all", "any", "not", "frames", "seen", "unseen", "under", "patches", "told")
_SPELLED = _LISTS[:6]


class Symptom(NamedTuple):
    """One way in which a failure shows; CONTRIBUTING.md says what the keys ask for."""

    every: tuple[Pattern, ...] = ()
    some: tuple[Pattern, ...] = ()
    none: tuple[Pattern, ...] = ()
    frames: tuple[Pattern, ...] = ()
    seen: tuple[str, ...] = ()  # in lower case, as the two that follow
    unseen: tuple[str, ...] = ()
    told: tuple[tuple[str, ...], ...] = ()  # of each a stem, near one another, in what a person writes
    under: tuple[str, ...] = ()
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
        whole = squeezed.replace(CUT, "")
        if not all(each.within(whole) or each.left_in(squeezed) for each in self.every):
            return False
        if self.some and not any(each.within(whole) or each.left_in(squeezed) for each in self.some):
            return False
        if any(each.within(whole) for each in self.none):
            return False
        if self.numbers and not self._related(whole):
            return False
        return self._framed(squeezed, whole)

    def _framed(self, squeezed: str, whole: str) -> bool:
        """Whether a frame that is asked for is there, or none could be."""
        if not self.frames or self.unconfirmed(squeezed):
            return True
        return any(each.within(whole) for each in self.frames)

    def perhaps(self, squeezed: str) -> bool:
        """Whether the message may show this, cut before it says so."""
        if CUT not in squeezed or self.kind != "error":
            return False
        whole = squeezed.replace(CUT, "")

        def there(each: Pattern) -> bool:
            return each.within(whole) or each.left_in(squeezed, LEFT)

        return (
            all(map(there, self.every))
            and (not self.some or any(map(there, self.some)))
            and not any(each.within(whole) for each in self.none)
            and not (self.numbers and list(self.every[0].occurrences(whole)))
            and self._framed(squeezed, whole)
        )

    def _related(self, whole: str) -> bool:
        """Whether the numbers are as asked; where they were cut off, what else is asked for must be there."""
        numbered = self.every[0]
        found = list(numbered.occurrences(whole)) or list(numbered.numbers_of().occurrences(whole))
        if not found:
            return any(each.within(whole) for each in self.some or self.frames)
        return any(map(RELATIONS[self.numbers], found))

    def unconfirmed(self, squeezed: str) -> bool:
        """Whether frames are asked for, and the message came without any."""
        return bool(self.frames) and 'file"' not in squeezed and _FRAME.search(squeezed) is None


class Row(NamedTuple):
    """A line of the README's table: what people see, and under which circumstances."""

    see: Pair
    under: Pair


class Failure(NamedTuple):
    """One failure; the pairs are English and Chinese. A ``foreign`` one is none that vlmpatch ends.

    ``harmless`` says when a hint of it, a warning that was printed, is none; ``untranslated`` are the keys
    whose Chinese is English still. ``reported`` has the places where upstream was told of it, none where it
    was not; it is None where no new release has the failure, or where ``stays`` says why new ones have it too
    and there is nothing to report.
    """

    id: str
    order: int
    foreign: bool
    title: Pair
    see: Pair
    where: Pair
    cause: Pair
    prose: Pair
    harmless: Pair
    stays: Pair
    advice: tuple[tuple[str, ...], tuple[str, ...]]
    readme: tuple[Row, ...]
    symptoms: tuple[Symptom, ...]
    untranslated: tuple[str, ...]
    reported: tuple[str, ...] | None = None

    @property
    def file(self) -> str:
        """The name of its file in ``failures/``."""
        return f"{_plain(self.id, 2)}.toml"

    def patches(self, catalog: Catalog, symptom: Symptom | None = None) -> list[Entry]:
        """The patches that end this failure, or this symptom of it where it names some."""
        named = symptom.patches if symptom else ()
        return [
            entry
            for entry in catalog.entries.values()
            if (entry.id in named if named else self.id in entry.failures)
        ]


class Failures(NamedTuple):
    """All failures that are soundly written, in their order, and the problems of the others."""

    known: dict[str, Failure]
    problems: tuple[Problem, ...]

    def called(self, name: str) -> Failure | None:
        """The failure that a user calls ``name``: ``F3``, ``f3`` and ``F03`` are one."""
        return {_plain(id_): failure for id_, failure in self.known.items()}.get(_plain(name))


@functools.cache
def read(path: str) -> Failures:
    """The failures that lie beside the catalog at ``path``; never raises for what a file holds or lacks."""
    folder = os.path.join(os.path.dirname(path), "failures")
    known: list[Failure] = []
    problems: list[Problem] = []
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".toml"))
    except OSError as error:
        problem = Problem(folder, f"cannot be read ({error.strerror})", "Reinstall vlmpatch")
        return Failures({}, (problem,))
    for name in names:
        try:
            with open(os.path.join(folder, name), "rb") as handle:
                known.append(parse(tomllib.load(handle), name))
        except (OSError, ValueError) as error:
            remedy = "CONTRIBUTING.md describes the keys of failures/"
            problems.append(Problem(os.path.join(folder, name), str(error), remedy))
    return Failures({each.id: each for each in sorted(known, key=_place)}, tuple(problems))


def every(catalog: Catalog) -> Failures:
    """Ours, and those that the patch sets of others describe, under ids that begin with the set's name."""
    found = [read(catalog.path), *(of_set(each) for each in catalog.sets.values())]
    known = {id_: failure for each in found for id_, failure in each.known.items()}
    return Failures(known, tuple(problem for each in found for problem in each.problems))


def of_set(patch_set: PatchSet) -> Failures:
    """Those that one patch set describes."""
    if not os.path.isdir(os.path.join(os.path.dirname(patch_set.path), "failures")):
        return Failures({}, ())  # a set may end failures of ours alone
    found, name = read(patch_set.path), patch_set.name
    known = [
        failure._replace(
            id=f"{name}/{failure.id}",
            symptoms=tuple(
                symptom._replace(patches=tuple(f"{name}/{each}" for each in symptom.patches))
                for symptom in failure.symptoms
            ),
        )
        for failure in found.known.values()
    ]
    return found._replace(known={failure.id: failure for failure in known})


def parse(table: Mapping[str, Any], name: str) -> Failure:
    """The failure that ``table`` describes.

    Args:
        table: the parsed TOML.
        name: the file's; it is the id, a number in two digits.

    Raises:
        ValueError: something in it is not as it should be; the text names the key and what to write.
    """
    _known_keys(
        table,
        {"id", "order", "foreign", "readme", "symptoms", "reported", *_paired(*_TEXTS, *_MORE, "advice")},
    )
    if not isinstance(foreign := table.get("foreign", False), bool):
        raise ValueError("foreign is neither true nor false")
    if not isinstance(order := table.get("order"), int):
        raise ValueError("order is missing or no number; those with a smaller one come first")
    id_ = _text(table, "id")
    if name != f"{_plain(id_, 2)}.toml":
        raise ValueError(f"id is {id_!r}; the file of that is {_plain(id_, 2)}.toml")
    given = {key: _pair(table, key) for key in _TEXTS}
    more = {key: _pair(table, key) if key in table else ("", "") for key in _MORE}
    if not foreign and not (more["see"][0] and more["where"][0]):
        raise ValueError("see and where are missing; say what is seen, and where")
    advice = _strings(table, "advice"), _strings(table, "advice_zh" if "advice_zh" in table else "advice")
    return Failure(
        id=id_,
        order=order,
        foreign=foreign,
        advice=advice,
        readme=_rows(table, more["see"]),
        symptoms=tuple(_symptom(each, number) for number, each in enumerate(_tables(table, "symptoms"), 1)),
        untranslated=tuple(key for key in (*_TEXTS, *_MORE, "advice") if _untranslated(table, key)),
        reported=_strings(table, "reported") if "reported" in table else None,
        **given,
        **more,
    )


_TEXTS = ("title", "cause")
_MORE = ("see", "where", "prose", "harmless", "stays")  # of a foreign failure these may be left out


def _place(failure: Failure) -> tuple[int, str]:
    return failure.order, failure.id


def _plain(name: str, digits: int = 1) -> str:
    """``name`` as it is compared: ``f03`` and ``F3`` are ``F3``, or with two digits ``F03``."""
    number = re.fullmatch(r"[Ff]0*(\d{1,4})", name)
    if number:
        return f"F{int(number[1]):0{digits}}"
    return name if digits > 1 else name.lower()


def _paired(*keys: str) -> set[str]:
    return {*keys, *(f"{key}_zh" for key in keys)}


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is missing, empty or not a string")
    return value.strip()


def _pair(table: Mapping[str, Any], key: str) -> Pair:
    """The text in both languages; what has no Chinese yet is English in both."""
    english, chinese = _text(table, key), f"{key}_zh"
    return english, _text(table, chinese) if chinese in table else english


def _untranslated(table: Mapping[str, Any], key: str) -> bool:
    """Whether Chinese is owed; what consists of `quoted` output needs none."""
    words = re.sub(r"`[^`]*`", "", str(table.get(key, "")))
    return f"{key}_zh" not in table and re.search(r"[A-Za-z]", words) is not None


def _tables(table: Mapping[str, Any], key: str) -> list[object]:
    value = table.get(key, [])
    if not isinstance(value, list):
        raise ValueError(f"{key} is not a list of tables; write [{{ … }}]")
    return value


def _rows(table: Mapping[str, Any], see: Pair) -> tuple[Row, ...]:
    rows = []
    for row in _tables(table, "readme"):
        if not isinstance(row, dict):
            raise ValueError('readme is not a list of tables; write [{ under = "…" }]')
        _known_keys(row, _paired("see", "under"))
        rows.append(Row(_pair(row, "see") if "see" in row else see, _pair(row, "under")))
    return tuple(rows)


def _symptom(table: object, number: int) -> Symptom:
    try:
        if not isinstance(table, dict):
            raise ValueError('is not a table; write { all = ["…"] }')
        _known_keys(table, {*_LISTS, "numbers", "ranks", "kind"})
        words = vocabulary.read()
        given = {key: _strings(table, key) for key in _LISTS}
        given |= {key: words.spelled(given[key]) for key in _SPELLED}
        alone = not given["all"] and not given["any"]
        kind, numbers = (
            table.get("kind", "told" if alone and given["told"] else "error"),
            table.get("numbers", ""),
        )
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is unknown; one of: {', '.join(KINDS)}")
        if numbers and (not isinstance(numbers, str) or numbers not in RELATIONS or not given["all"]):
            raise ValueError(f"numbers asks for `all` and is one of: {', '.join(RELATIONS)}")
        if (ranks := table.get("ranks", "")) not in ("", "differ"):
            raise ValueError(f"ranks {ranks!r} is unknown; it can be: differ")
        if unknown := set(given["under"]) - {*words.engines, "unknown"}:
            raise ValueError(f"{min(unknown)} is no engine; known: {', '.join(words.engines)}, unknown")
        if alone and not given["told"]:
            raise ValueError("all and any are both empty; one of them says what is seen")
        if (kind == "told" and not alone) or (alone and kind not in ("told", "perhaps")):
            raise ValueError(
                "kind is told where told stands without all and any (or perhaps), and nowhere else"
            )
        every, some, none, frames = (tuple(map(pattern, given[key])) for key in _LISTS[:4])
        seen, unseen = (tuple(word.lower() for word in given[key]) for key in ("seen", "unseen"))
        told = words.stems(given["told"])
    except ValueError as error:
        raise ValueError(f"symptom {number}: {error}") from None
    drawing = _words(given["all"][:1] or given["any"]) if kind == "hint" else ()
    lists = (every, some, none, frames)
    return Symptom(
        *lists, seen, unseen, told, given["under"], numbers, ranks, kind, given["patches"], drawing
    )


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
