"""Words on file: a line for each thing that was run, a column for each engine it was run under."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import table

Found = dict[tuple[str, ...], dict[str, str]]  # what was run -> engine -> word
HARM = ("harmed", "worse")
FIXED = "fixed"
WORDS = ("=", FIXED, "wrong", "ends", "ends now", *HARM)


@dataclass(frozen=True)
class Grid:
    """A file of ``data/``.

    Args:
        path: the file.
        what: the columns that say what was run.
        columns: those that hold words.
        again: the command that measures what the file holds.
    """

    path: Path
    what: tuple[str, ...]
    columns: tuple[str, ...]
    again: str

    def read(self, path: Path | None = None) -> Found:
        """What was run; words that are not there are left out.

        Raises:
            table.Broken: the file is not whole.
        """
        lines = table.read(path or self.path, (*self.what, *self.columns), self.again)
        return {
            tuple(line[name] for name in self.what): {
                column: line[column] for column in self.columns if line[column]
            }
            for _, line in lines
        }

    def save(self, found: Found, path: Path | None = None) -> None:
        lines = [
            (*what, *(words.get(column, "") for column in self.columns))
            for what, words in sorted(found.items())
        ]
        table.write(path or self.path, (*self.what, *self.columns), lines)


def word(before: bool, after: bool, *, ended: bool, ends: bool) -> str:
    """What vlmpatch makes of a training, in a word.

    Args:
        before: whether it is right bare.
        after: whether it is right with vlmpatch.
        ended: whether it ends with an error bare.
        ends: whether it does with vlmpatch.
    """
    if before:
        return "=" if after else "harmed"
    if after:
        return FIXED
    if ended:
        return "ends" if ends else "worse"
    return "ends now" if ends else "wrong"


def counted(words: Iterable[str]) -> str:
    """Each word, with how often it was said where there are several; the most frequent first."""
    counts = Counter(words)
    if len(counts) < 2:
        return "".join(counts)
    return ", ".join(f"{said} {number}" for said, number in counts.most_common())


def of_one(found: Found, place: int, name: str, columns: Sequence[str]) -> list[str]:
    """The row of a table: all that was said of ``name``, which stands at ``place`` in what was run."""
    told = [words for what, words in found.items() if what[place] == name]
    return [counted(words[column] for words in told if column in words) for column in columns]
