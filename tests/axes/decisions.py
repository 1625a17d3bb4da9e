"""What is said of cells that are not right with vlmpatch, and of those that are empty: ``decisions.toml``.

An entry is a cause; it names the cells it is said of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.axes.rows import ENGINES, ROWS
from tests.lab import grid

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("decisions.toml")
FINE = ("=", "fixed")
STACKS = ("tf445-ds0154", "tf457-ds0182", "tf523-ds0198")  # on which every cell is run, or spoken for
Cell = tuple[str, str, str]  # stack, row and engine


@dataclass(frozen=True)
class Decision:
    """A cause: the cells it may be said of, and why nothing fixes or fills them, in Markdown."""

    rows: tuple[str, ...]
    engines: tuple[str, ...]
    en: str
    zh: str
    stacks: tuple[str, ...] = STACKS

    @property
    def cells(self) -> set[Cell]:
        return {(stack, row, engine) for stack in self.stacks for row in self.rows for engine in self.engines}


def red() -> list[Decision]:
    """Of cells that are not right with vlmpatch."""
    return _read("decision")


def absent() -> list[Decision]:
    """Of cells that are empty."""
    return _read("absent")


def _read(kind: str) -> list[Decision]:
    entries = tomllib.loads(FILE.read_text("utf-8"))[kind]
    return [Decision(**{"engines": ENGINES, **entry}) for entry in entries]


def owed(found: grid.Found) -> dict[Cell, str]:
    """The words of all cells on file that are not right with vlmpatch."""
    return {cell: word for cell, word in _words(found) if word not in FINE}


def not_yet(found: grid.Found) -> list[Cell]:
    """The cells of ``STACKS`` that are not on file for no reason but that nobody has run them."""
    said = {cell for cell, _ in _words(found)}.union(*(decision.cells for decision in absent()))
    every = ((stack, row, engine) for stack in STACKS for row in ROWS for engine in ENGINES)
    return [cell for cell in every if cell not in said]


def _words(found: grid.Found) -> Iterator[tuple[Cell, str]]:
    for (stack, row), words in found.items():
        yield from (((stack, row, engine), words[engine]) for engine in ENGINES if engine in words)


def shown(decisions: list[Decision], language: str, words: dict[Cell, str]) -> str:
    """A paragraph a decision, behind the cells it is about and, where they have any, their words."""
    return "\n".join(_shown(decision, language, words) for decision in decisions)


def shown_empty(found: grid.Found, language: str) -> str:
    """A paragraph a reason why cells are empty, then those that have none."""
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    cells = not_yet(found)
    for stack, row in dict.fromkeys((stack, row) for stack, row, _ in cells):
        engines = tuple(engine for engine in ENGINES if (stack, row, engine) in cells)
        rows.setdefault((stack, engines), []).append(row)
    left = [
        Decision(tuple(names), engines, "not run yet.", "尚未运行。", (stack,))
        for (stack, engines), names in rows.items()
    ]
    return shown([*absent(), *left], language, {})


def _shown(decision: Decision, language: str, words: dict[Cell, str]) -> str:
    rows = ", ".join(f"`{row}`" for row in decision.rows)
    where = [] if tuple(decision.engines) == ENGINES else [", ".join(decision.engines)]
    where += _said(decision, words) or ([] if decision.stacks == STACKS else [", ".join(decision.stacks)])
    text = {"en": decision.en, "zh": decision.zh}[language]
    return f"- {rows} ({'; '.join(where)}): {text}" if where else f"- {rows}: {text}"


def _said(decision: Decision, words: dict[Cell, str]) -> list[str]:
    """Each word of its cells, with the stacks that say it."""
    found: dict[str, set[str]] = {}
    for cell in decision.cells & words.keys():
        found.setdefault(words[cell], set()).add(cell[0])
    return [f"`{word}`: {', '.join(sorted(stacks))}" for word, stacks in sorted(found.items())]
