"""The language of symptoms: how printed text is known again.

A pattern is printed text. It is compared without white space and without case, so that a message which a
terminal or a notebook has wrapped, anywhere, is the same message. ``*`` stands for a run of at most
``RUN`` characters, ``#`` for a number or a list of numbers. A ``*`` ends at the first place where what
follows it fits: nothing is tried twice, so the time a text takes grows with its length and no faster.
A line that was cut at the width of a terminal ends in ``…``; a pattern is known there by what is left of it,
or perhaps meant where too little is left to tell it apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

RUN = 300
CUT = "…"
LEFT = 24  # characters, and 6 of 10 of a text, that must be left of one that is cut
NAMED = 5  # of a quoted name, with its quotation mark
WRAPPED = 6  # characters of a pattern that go on behind a cut: the line was broken there, and not cut
WILDCARDS = re.compile(r"[*#]")
_SIZE = re.compile(r"[\[(]\d{1,9}[\])]|\d$")
_NUMBERS = re.compile(r"\d+(?:,\d+)*")
# What terminals, rich tracebacks and Chinese input methods put in place of, or between, ASCII.
_FOLDED = {ord(old): new for old, new in zip("：，；（）［］’‘“”`", ":,;()[]''\"\"'", strict=True)}
_FOLDED |= dict.fromkeys(map(ord, "│┃║╎╭╮╰╯─━┌┐└┘❱\u200b\ufeff"), "")

Numbers = tuple[int, ...]


def squeeze(text: str) -> str:
    """``text`` without white space, case, frames of boxes and typographic variants."""
    return "".join(text.translate(_FOLDED).split()).lower()


class Pattern(NamedTuple):
    """A pattern, taken apart: what it begins with, then wildcards, each with the text that follows it."""

    head: str
    rest: tuple[tuple[str, str], ...]

    def occurrences(self, squeezed: str) -> Iterator[tuple[Numbers, ...]]:
        """What each ``#`` stood for, once for every place of ``squeezed`` where the pattern fits."""
        at = squeezed.find(self.head)
        while at >= 0:
            numbers = self._fits(squeezed, at + len(self.head))
            if numbers is not None:
                yield numbers
            at = squeezed.find(self.head, at + 1)

    def numbers_of(self) -> Pattern:
        """The pattern down to the sign behind its last wildcard: what is left of it where a line was cut."""
        *rest, (wildcard, literal) = self.rest
        return self._replace(rest=(*rest, (wildcard, literal[:1])))

    def within(self, squeezed: str) -> bool:
        """Whether the pattern fits anywhere."""
        return next(self.occurrences(squeezed), None) is not None

    def left_in(self, squeezed: str, least: int = 0) -> bool:
        """Whether enough of the pattern stands before a place where a line was cut.

        Args:
            squeezed: the text.
            least: how many of its characters are enough, where not those that tell it apart are asked for.
        """
        if CUT not in squeezed:
            return False
        least = least or self._least()
        short = self.head[: min(least, len(self.head))]
        at = squeezed.find(short)
        while at >= 0:
            if self._left(squeezed, at) >= least:
                return True
            at = squeezed.find(short, at + 1)
        return False

    def _least(self) -> int:
        """How many of the pattern's own characters must be left: what tells it apart is among them."""
        text = "".join((self.head, *(literal for _, literal in self.rest)))
        quote = text.rfind("'", 0, len(text) - 1)
        number = max((match.end() for match in _SIZE.finditer(text)), default=0)
        return max(LEFT, 6 * len(text) // 10, quote + NAMED, number)

    def _left(self, squeezed: str, at: int) -> int:
        """How many of its own characters stand from ``at`` to a cut; 0 where they do not end in one."""
        kept = 0
        for wildcard, literal in (("", self.head), *self.rest):
            if wildcard == "#":
                number = _NUMBERS.match(squeezed, at, at + RUN)
                at = number.end() if number else at
            ahead = at + (RUN if wildcard == "*" else 0)
            found = squeezed.find(literal, at, ahead + len(literal))
            if found < 0:
                return kept + _before_cut(literal, squeezed[at : ahead + len(literal)], wildcard == "*", kept)
            at, kept = found + len(literal), kept + len(literal)
        return 0

    def _fits(self, squeezed: str, at: int) -> tuple[Numbers, ...] | None:
        found: list[Numbers] = []
        for wildcard, literal in self.rest:
            if wildcard == "#":
                match = _NUMBERS.match(squeezed, at, at + RUN)
                if match is None or not squeezed.startswith(literal, match.end()):
                    return None
                found.append(tuple(int(word[-18:]) for word in match[0].split(",")))
                at = match.end() + len(literal)
            else:
                at = squeezed.find(literal, at, at + RUN + len(literal))
                if at < 0:
                    return None
                at += len(literal)
        return tuple(found)


def _before_cut(literal: str, text: str, anywhere: bool, kept: int) -> int:
    """How much of ``literal`` stands in ``text`` before a cut, or less than nothing where no cut ends it."""
    for length in range(len(literal) - 1, -1, -1):
        left = literal[:length] + CUT
        if left + literal[length:][:WRAPPED] in text and len(literal) - length > WRAPPED:
            return -kept
        if text.startswith(left) or (anywhere and left in text):
            return length
    return -kept


def pattern(text: str) -> Pattern:
    """Read a pattern.

    Raises:
        ValueError: it begins with a wildcard, or holds nothing but wildcards.
    """
    literals = [squeeze(part) for part in WILDCARDS.split(text)]
    wildcards = WILDCARDS.findall(text)
    if not literals[0]:
        raise ValueError(f"{text!r} does not begin with text")
    return Pattern(literals[0], tuple(zip(wildcards, literals[1:], strict=True)))


def one_apart(found: tuple[Numbers, ...]) -> bool:
    """Two lists alike but for one place, where they are one apart."""
    differing = _differing(found)
    return len(differing) == 1 and abs(differing[0][0] - differing[0][1]) == 1


def doubled(found: tuple[Numbers, ...]) -> bool:
    """Two lists alike but for one place, where the second is twice the first; or a list that ends so."""
    if len(found) == 1 and len(found[0]) > 1 and found[0][-2] > 1:
        found = ((found[0][-2],), (found[0][-1],))
    differing = _differing(found)
    return len(differing) == 1 and differing[0][1] == 2 * differing[0][0] > 0


def halved(found: tuple[Numbers, ...]) -> bool:
    """The same the other way round."""
    return len(found) == 2 and doubled(found[::-1])


def rows_apart(found: tuple[Numbers, ...]) -> bool:
    """Two shapes alike but for their rows, of which one has a few more or fewer."""
    differing = _differing(found)
    if len(differing) != 1 or len(found[0]) < 2 or found[0][0] == found[1][0]:
        return False
    fewer, more = sorted(differing[0])
    return fewer > 0 and more - fewer <= max(1, fewer // 8)


def _differing(found: tuple[Numbers, ...]) -> list[tuple[int, int]]:
    if len(found) < 2 or len(found[0]) != len(found[1]):
        return []
    return [(one, other) for one, other in zip(found[0], found[1], strict=True) if one != other]


RELATIONS = {"one apart": one_apart, "doubled": doubled, "halved": halved, "rows apart": rows_apart}
