"""A training log of any size -> the messages in it, in order, in bounded memory.

The file is read in pieces. A piece in which none of a few words occurs (``Error``, ``Watchdog``, …) is passed
over at the speed of ``bytes.find``; around a word that does occur, lines are put together to messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from vlmpatch.tools.explain.lines import LINE, broken_at, lines
from vlmpatch.tools.explain.messages import Message, Messages, clean

PIECE = 1 << 20
AROUND = 12 << 10  # bytes looked at before and after a word
ENDS = 192 << 10  # the first and the last bytes of a log are looked at in any case
BUSY = 48 << 10  # bytes of one piece that are looked at closely, once GENEROUS have been
GENEROUS = 32 << 20
OFTEN = 24  # lines that differ in digits only are looked at this often
SHAPES = 50_000
EARLY = 32 << 20  # bytes in which a launch says what it is, and vlmpatch's own words are looked for

# One of these is near whatever ends a run, and far from what training prints step by step.
WORDS = (b"Error", b"Traceback", b"Watchdog")
# What vlmpatch itself prints: soon after the start, where nothing else may draw attention to it.
OWN_WORDS = (b"vlmpatch [", b"vlmpatch watch: ", b"vlmpatch INFO", b"vlmpatch DEBUG")
_PROGRESS = b"'loss'"
_DIGITS = b"0123456789"


class Reader:
    """Reads a log once.

    Args:
        tell: called with each message, in order of where it ends.
        words: what is worth a closer look, besides ``WORDS``.
        facts: words in lower case, of which is recorded where they first occur.
    """

    def __init__(
        self, tell: Callable[[Message], None], words: Sequence[bytes] = (), facts: Sequence[bytes] = ()
    ) -> None:
        self.words = tuple(dict.fromkeys((*WORDS, *words)))
        self.facts: dict[bytes, int] = {}  # where each was first seen
        self._facts = facts
        self.size = 0
        self.steps = 0  # losses reported since shortly before the first word
        self.own = False  # vlmpatch has printed something
        self.broken = False  # a terminal has broken its lines
        self._messages = Messages(tell)
        self._counting = False
        self._close_looks = 0
        self._alike: dict[int, int] = {}
        # The bytes at hand begin at `_base`, new ones at `_seam`; so many lines and losses lie before.
        self._data, self._base, self._seam = b"", 0, 0
        self._lines = self._losses = 0

    def read(self, stream: BinaryIO, progress: Callable[[int], None] | None = None) -> None:
        """Read ``stream`` to its end; ``progress`` is told how many bytes have been read."""
        fed, wanted = 0, ENDS
        while piece := stream.read(PIECE):
            self._advance(piece)
            self._note(piece)
            fed, wanted = self._feed(fed, wanted)
            if progress:
                progress(self.size)
        last = max(fed, self.size - ENDS)
        if last > fed:
            self._messages.close()
        last_piece = self._data[-PIECE:]
        _find(last_piece + b"\n", self.size - len(last_piece), self._facts, self.facts)
        self._look(max(last, self._base), self.size, ended=True)
        self._messages.close()

    def _advance(self, piece: bytes) -> None:
        passed = self._data[:-ENDS]
        self._lines += passed.count(b"\n")
        if self._counting:
            self._losses += passed.count(_PROGRESS)
            self.steps += piece.count(_PROGRESS)
        self._seam = self.size
        self._data = self._data[-ENDS:] + piece
        self.size += len(piece)
        self._base = self.size - len(self._data)

    def _note(self, piece: bytes) -> None:
        start = max(0, self._seam - self._base - 64)
        seam = self._data[start:][:128]
        if self.size <= EARLY:
            _find(self._data[start:], self._base + start, self._facts, self.facts)
        if not self.own and self.size <= EARLY and (b"vlmpatch" in piece or b"vlmpatch" in seam):
            self.own = any(words in piece or words in seam for words in OWN_WORDS)

    def _feed(self, fed: int, wanted: int) -> tuple[int, int]:
        """Look closely at what deserves it.

        Args:
            fed: everything before was looked at, or passed over.
            wanted: everything from ``fed`` to there is to be looked at.
        """
        room = BUSY if self._close_looks > GENEROUS else PIECE
        for at in self._hits(max(fed, self._seam - AROUND, 0)):
            if not self._counting:
                self._counting, self.steps = True, self._data.count(_PROGRESS)
            start = max(fed, self._base, at - AROUND)
            if start > wanted:
                fed = self._look(fed, wanted)
                self._messages.close()
                fed = max(fed, start)
            room -= max(0, at + AROUND - max(wanted, start))
            wanted = max(wanted, at + AROUND)
            if room < 0:
                break
        return self._look(fed, min(wanted, self.size)), wanted

    def _hits(self, start: int) -> Iterator[int]:
        """Where words stand, in order: not each of a stretch, nor those of lines that come all the time."""
        ahead = {word: self._hit(word, start - self._base) for word in self.words}
        while ahead := {word: at for word, at in ahead.items() if at >= 0}:
            at = min(ahead.values())
            yield self._base + at
            for word, place in ahead.items():
                if place < at + AROUND // 2:
                    ahead[word] = self._hit(word, at + AROUND // 2)

    def _hit(self, word: bytes, start: int) -> int:
        data = self._data
        at = data.find(word, start)
        while at >= 0:
            begin, end = data.rfind(b"\n", max(0, at - LINE), at) + 1, data.find(b"\n", at, at + LINE)
            shape = hash(
                data[max(begin, at - 80) : at + 120 if end < 0 else min(end, at + 120)].translate(
                    None, _DIGITS
                )
            )
            seen = self._alike.get(shape, 0)
            if seen < OFTEN:
                if len(self._alike) < SHAPES:
                    self._alike[shape] = seen + 1
                return at
            at = data.find(word, at + len(word) if end < 0 else end)
        return -1

    def _look(self, start: int, end: int, ended: bool = False) -> int:
        """Feed the lines between ``start`` and ``end``; returns where it stopped: after a whole line."""
        if start >= end:
            return start
        here = start - self._base
        part = self._data[here : end - self._base]
        if not ended:
            cut = max(part.rfind(b"\n"), part.rfind(b"\r")) + 1
            part = part[:cut] if cut else part
        self._close_looks += len(part)
        self._messages.steps = self._losses + self._data.count(_PROGRESS, 0, here)
        first = 1 + self._lines + self._data.count(b"\n", 0, here)
        given = part.split(b"\n")
        self.broken = self.broken or broken_at(given) > 0
        for number, raw in lines(given, first):
            self._messages.steps += _PROGRESS in raw
            self._messages.add(clean(raw, number))
        return start + len(part)


def occurring(stream: BinaryIO, facts: Sequence[bytes], broken: bool = False) -> dict[bytes, int]:
    """Where each of ``facts``, in lower case, first occurs in the first ``EARLY`` bytes or the last piece.

    Args:
        stream: the log; it can be read from any place.
        facts: what is looked for.
        broken: a terminal has broken the lines of this log.
    """
    found: dict[bytes, int] = {}
    size = stream.seek(0, os.SEEK_END)
    for begin, end in ((0, EARLY), (max(EARLY, size - PIECE), size)):
        before, at = b"", stream.seek(begin)
        while at < end and len(found) < len(facts) and (piece := stream.read(PIECE)):
            _find(before + piece, at - len(before), facts, found)
            if broken:
                _find((before + piece).replace(b"\n", b""), at - len(before), facts, found)
            before = piece[-64:]
            at += len(piece)
        _find(before + b"\n", at - len(before), facts, found)
    return found


def _find(data: bytes, at: int, facts: Sequence[bytes], found: dict[bytes, int]) -> None:
    plain = data.lower().replace(b"\\_", b"_")  # as Markdown writes it
    for fact in facts:
        if fact not in found and (place := standing(plain, fact)) >= 0:
            found[fact] = at + place


def standing(plain: bytes, word: bytes) -> int:
    """Where ``word`` first stands in ``plain``, or -1; a space at its end is where a word ends.

    What ``plain`` itself ends in may be the beginning of a longer word.
    """
    bare = word.rstrip(b" ")
    at = plain.find(bare)
    while at >= 0 and bare != word and not _ends(plain, at + len(bare)):
        at = plain.find(bare, at + 1)
    return at


def _ends(plain: bytes, at: int) -> bool:
    after = plain[at : at + 1]
    return bool(after) and not after.isalnum() and after != b"_"
