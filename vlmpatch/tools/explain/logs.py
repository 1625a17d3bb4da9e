"""A training log of any size -> the messages in it, in order, in bounded memory.

The file is read in pieces. A piece in which none of a few words occurs (``Error``, ``Watchdog``, …) is passed
over at the speed of ``bytes.find``; around a word that does occur, lines are cleaned of colours, time
stamps and the prefixes of launchers, sorted by the rank that printed them, and put together to messages:
a traceback with what it ends in, or a few lines that belong together.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from vlmpatch.tools.explain.lines import LINE, broken_at, lines

PIECE = 1 << 20
AROUND = 12 << 10  # bytes looked at before and after a word
ENDS = 192 << 10  # the first and the last bytes of a log are looked at in any case
LINES = 400  # what is kept of one message: its first and its last lines
SOURCES = 4096  # ranks that are told apart
HELD = 16 << 20  # characters of messages that have not ended, all ranks together
WIDE = 72  # characters of a line that may go on in the next
LOOSE = 24  # lines without a traceback that are looked at together
BUSY = 48 << 10  # bytes of one piece that are looked at closely, once GENEROUS have been
GENEROUS = 32 << 20
OFTEN = 24  # lines that differ in digits only are looked at this often
SHAPES = 50_000
EARLY = 32 << 20  # bytes in which a launch says what it is, and vlmpatch's own words are looked for

# One of these is near whatever ends a run, and far from what training prints step by step.
WORDS = (b"Error", b"Traceback", b"Watchdog")
_PROGRESS = b"'loss'"
_DIGITS = b"0123456789"

_COLOUR = re.compile(r"\x1b(?:\[[0-9;:?]{0,40}[ -/]?[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|.)")
_TIME = r"\d{4}[-/]\d\d[-/]\d\d[T ,]+\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
# (pattern, whether its first group names who printed the line)
_PREFIXES = tuple(
    (re.compile(shape), names)
    for shape, names in (
        (r"\[(rank ?\d{1,6})\]:? ?", True),
        (r"\[(?:default|trainer|worker|train|node)_?(\d{1,6})\]:? ?", True),
        (r"\[(\d{1,6},\d{1,6})\]<std(?:err|out)>: ?", True),
        (r"\([^()\n]{0,80}?(pid=\d{1,9}(?:, ip=[\w.:]{1,60})?)\)(?: \[repeated [^\]\n]{1,80}\])? ?", True),
        (rf"{_TIME} (?:stdout|stderr) [FP] ", False),
        (rf"\[?{_TIME}\]? ?[:|-]? ?", False),
        (r"\[(pod/[\w./-]{1,200})\] ?", True),
        (r"([\w-]{1,80}(?:\.[\w-]{1,80})?) {1,20}\| ", True),
        (r"(?:[A-Z][a-z]{2}) [ \d]\d \d\d:\d\d:\d\d ([\w.-]{1,80}) [\w./-]{1,80}(?:\[\d{1,9}\])?: ", True),
        (r" {0,4}(\d{1,5}): ", True),
        (r"((?!\w*(?:Error|Exception))[A-Za-z][\w.-]{0,60}\d): ", True),
        (r"\[[EWIF]\d{0,4} ?(?:\d\d:\d\d:\d\d[.\d]{0,12} )?[\w.]{1,80}:\d{1,6}\] ", False),
        (r"[EWIF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} {1,4}(?:\d{1,9} )?[\w./-]{1,200}:\d{1,6}\] ", False),
        (r"\[\d{1,9}\](?=\s|\[|$) ?", False),
        (r"E {3,12}(?=\S)", False),  # pytest's
        (r"> ?", False),
        (r"#{1,6} (?=[A-Z])", False),  # a title's
    )
)
_BOXED = '{"log":"'
_EXCEPTION = re.compile(
    r"\s*(?:(?:\([\w ]{1,20}\)|\[[A-Z]{2,20}\]|(?:E|ERROR|Error)\b:?) ?)?"
    r"((?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80}(?:Error|Exception|Interrupt|Exit|Expired))(?:\([\w.]{1,80}\))?"
    r"(?:\s*[:：]|\s*$)"
)
_BARE_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w{0,80}\.){0,12}[A-Z]\w{0,80})(?:: |$)")
_FRAME = re.compile(r'\s*(?:[│|] )?File ["“”].{1,400}["“”], line \d')
_TRACEBACK = "Traceback (most recent call last)"
# What vlmpatch itself prints: soon after the start, where nothing else may draw attention to it.
OWN_WORDS = (b"vlmpatch [", b"vlmpatch watch: ", b"vlmpatch INFO", b"vlmpatch DEBUG")
OWN_LINES = ("vlmpatch [", "vlmpatch watch: ", "vlmpatch WARNING: ")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


class Message(NamedTuple):
    """What one rank printed together.

    ``at`` is the number of its decisive line; ``error`` the name of the exception it ends in, or nothing;
    ``line`` the decisive line itself, cleaned; ``steps`` how many losses were reported before it; ``cut``
    whether it is a traceback whose exception never came.
    """

    at: int
    source: str
    error: str
    line: str
    text: str
    steps: int
    cut: bool = False

    def before_frames(self) -> Message:
        """What a person wrote above a traceback that came without its first line."""
        lines = self.text.split("\n")
        words = list(itertools.takewhile(lambda line: not _FRAME.match(line), lines))
        return self._replace(text="\n".join(words), line=words[0] if words else "")


class Line(NamedTuple):
    """A line without its prefixes."""

    at: int
    source: str
    text: str
    fresh: bool  # it began with something that a line begins with: it is not the rest of another
    wide: bool = False  # as long as a line that a terminal has wrapped


def clean(raw: bytes, at: int) -> Line:
    """``raw`` without colours and prefixes, and who printed it as far as the prefixes say."""
    text = raw[:LINE].decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    source: list[str] = []
    fresh, wide = False, len(text) >= WIDE
    if text.startswith(_BOXED):  # a line of Docker's json-file, as nodes of Kubernetes keep it
        text = text[len(_BOXED) :].partition('\\n","')[0].partition('","stream":')[0].replace('\\"', '"')
    for _ in range(6):
        for shape, names in _PREFIXES:
            match = shape.match(text)
            if match and match.end():
                if names:
                    source.append(match[1])
                text, fresh = text[match.end() :], True
                break
        else:
            break
    return Line(at, " ".join(source), text, fresh, wide)


class _Source:
    """The message that one rank is in the middle of."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.decisive: Line | None = None
        self.error = ""
        self.traced = False  # in a traceback whose exception has not come yet
        self.steps = 0

    def add(self, line: Line) -> None:
        self.lines.append(line)
        if len(self.lines) > LINES:
            del self.lines[LINES // 2]

    def take(self) -> Message | None:
        """The message so far; this then begins anew."""
        lines, decisive, error, steps = self.lines, self.decisive, self.error, self.steps
        frames = [line for line in lines if _FRAME.match(line.text)] if decisive is None else []
        cut = bool(frames) and (self.traced or frames[-1] in lines[-3:])
        self.__init__()  # type: ignore[misc]
        if not lines:
            return None
        decisive = decisive or (frames[-1] if cut else lines[0])
        text = "\n".join(line.text for line in lines)
        return Message(decisive.at, decisive.source, error, decisive.text, text, steps, cut)


class Messages:
    """Lines in, messages out.

    Args:
        tell: called with each message.
    """

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._sources: dict[str, _Source] = {}
        self._last = ""
        self._held = 0
        self.steps = 0

    def add(self, line: Line) -> None:
        """Take the next line of the log."""
        self._held += len(line.text)
        if len(self._sources) >= SOURCES or self._held > HELD:
            self.close()
        name = line.source
        if not name and self._last and self._continues(line):
            name = self._last  # a wrapped line has lost its prefix
        self._last = name
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = _Source()
        self._place(source, line)

    def _continues(self, line: Line) -> bool:
        last = self._sources.get(self._last)
        starts = _TRACEBACK in line.text or _EXCEPTION.match(line.text)
        going = last is not None and (last.decisive is not None or bool(last.lines and last.lines[-1].wide))
        return going and not line.fresh and bool(line.text.strip()) and not starts

    def _place(self, source: _Source, line: Line) -> None:
        text = line.text
        if not source.lines:
            source.steps = self.steps
        if _TRACEBACK in text or text.startswith(_CHAINED):
            self._finish(source)
            source.traced = _TRACEBACK in text
            source.add(line)
        elif text.startswith(OWN_LINES) or "python -m vlmpatch explain" in text:
            self._finish(source)
            source.add(line)
            self._finish(source)
        elif match := self._exception(source, text):
            if source.decisive is not None:
                self._finish(source)
            source.add(line)
            source.decisive, source.error, source.traced = line, match[1].rpartition(".")[2], False
            source.steps = self.steps
        else:
            source.add(line)
            if not source.traced and len(source.lines) >= LOOSE + (40 if source.decisive else 0):
                self._finish(source)

    @staticmethod
    def _exception(source: _Source, text: str) -> re.Match[str] | None:
        if source.traced and text[:1].isalpha():
            return _BARE_EXCEPTION.match(text) or _EXCEPTION.match(text)
        if "rror" in text or "xception" in text or "Inter" in text or "Ex" in text:
            return _EXCEPTION.match(text)
        return None

    def _finish(self, source: _Source) -> None:
        if message := source.take():
            self._tell(message)

    def close(self) -> None:
        """What follows does not belong to what came before."""
        for source in self._sources.values():
            self._finish(source)
        self._sources.clear()
        self._last, self._held = "", 0


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
    plain = data.lower()
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
