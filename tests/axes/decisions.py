"""What is said of cells that are not right with vlmpatch: ``decisions.toml``, an entry a cause."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab import grid

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("decisions.toml")
FINE = ("=", "mended")
Cell = tuple[str, str]  # row and engine


@dataclass(frozen=True)
class Decision:
    """A cause: the cells it is said of, and why nothing mends them, in Markdown."""

    rows: tuple[str, ...]
    engines: tuple[str, ...]
    en: str
    zh: str

    @property
    def cells(self) -> set[Cell]:
        return {(row, engine) for row in self.rows for engine in self.engines}


def read() -> list[Decision]:
    entries = tomllib.loads(FILE.read_text("utf-8"))["decision"]
    return [
        Decision(tuple(entry["rows"]), tuple(entry["engines"]), entry["en"], entry["zh"]) for entry in entries
    ]


def owed(found: grid.Found, engines: tuple[str, ...]) -> set[Cell]:
    """The cells on file that are not right with vlmpatch on some stack."""
    return set(_red(found, engines))


def _red(found: grid.Found, engines: tuple[str, ...]) -> Iterator[Cell]:
    for (_, row), words in found.items():
        yield from ((row, engine) for engine in engines if words.get(engine, "=") not in FINE)


def shown(language: str) -> str:
    """A paragraph a decision, behind the cells it is about."""
    parts = []
    for decision in read():
        rows = ", ".join(f"`{row}`" for row in decision.rows)
        text = {"en": decision.en, "zh": decision.zh}[language]
        parts.append(f"- {rows} ({', '.join(decision.engines)}): {text}")
    return "\n".join(parts)
