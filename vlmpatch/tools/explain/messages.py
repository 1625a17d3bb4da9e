"""Lines of a log -> messages: what one rank printed together.

A line is cleaned of colours, time stamps and the prefixes of launchers, and sorted by the rank that printed
it. Lines are put together to messages: a traceback with what it ends in, or a few lines that belong together.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

from vlmpatch.tools.explain.lines import LINE

LINES = 400  # what is kept of one message: its first and its last lines
SOURCES = 4096  # ranks that are told apart
HELD = 16 << 20  # characters of messages that have not ended, all ranks together
WIDE = 72  # characters of a line that may go on in the next
BELOW = 10  # lines below the last frame of a traceback that came without head and end
LOOSE = 24  # lines without a traceback that are looked at together

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
        (r"(?:ERROR|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,80}:\d{1,6}\] ?", False),  # vLLM's
        (r"E {3,12}(?=\S)", False),  # pytest's
        (r"> ?", False),
        (r"#{1,6} (?=[A-Z])", False),  # a title's
    )
)
_BOXED = '{"log":"'
_DIGITS = re.compile(r"\d{1,18}")
_EXCEPTION = re.compile(
    r"\s*[*`]{0,3}(?:(?:\([\w ]{1,20}\)|\[[A-Z]{2,20}\]|(?:E|ERROR|Error)\b:?) ?)?"
    r"((?:[A-Za-z_]\w{0,80}\.){0,12}"
    r"(?:[A-Za-z_]\w{0,80}(?:Error|Exception|Interrupt|Exit|Expired)|StopIteration))(?:\([\w.]{1,80}\))?"
    r"(?:\s*[:：]|\s*$)"
)
_BARE_EXCEPTION = re.compile(
    r"((?:[A-Za-z_]\w{0,80}\.){0,12}[A-Z]\w{0,80}|(?:[A-Za-z_]\w{0,80}\.){1,12}[a-z]{0,20}error)(?:: |$)"
)
# A frame as Python prints it, as notebooks of two ages do, and rich.
_FRAME = re.compile(
    r"\s*(?:[│|] )?(?:File [\"“”].{1,400}[\"“”], line \d"
    r"|File [^\n\"“”]{1,400}:\d{1,7}, in [\w.<]|(?:Cell|Input) In ?\[\d{1,6}\], (?:line \d|in [\w.<])"
    r"|\[?[~./\\<\w][^\s\"“”\]]{0,400}(?:\.pyx?|>)(?:\]\([^)\s]{1,300}\))?"
    r" in (?:<[\w :]{1,60}>|[\w.]{1,120}\())"
    r"|\s*[│|] (?:[^\s\"“”]{1,400}:\d{1,7} in [\w.<]|in [\w.<>]{1,120}:\d)"
)
_TRACEBACK = "Traceback (most recent call last)"
# What notebooks print above a traceback: the class of its exception, and only then what others begin with,
# without a colon at its end.
HEADED = re.compile(
    r"\s{0,8}((?:[A-Za-z_]\w{0,80}\.){0,12}"
    r"(?:[A-Za-z_]\w{0,80}(?=\s{2,80}Traceback \(most recent call last\)(?!:))"
    r"|[A-Za-z_]\w{0,80}(?:Error|Exception|Interrupt|Exit|Iteration)))\s{1,80}"
    r"Traceback \(most recent call last\)"
)
# What launchers raise once a rank has failed, and what a frame of theirs holds.
_LAUNCHERS = {"ChildFailedError": "torch/distributed", "CalledProcessError": "subprocess"}
_TRACED = re.compile(
    rf"{_FRAME.pattern}|(?:[╭─]{{1,400}} )?Traceback \(most recent call last\)|{HEADED.pattern}"
)
_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})\s*[\w+-]{0,20}\s*$")  # of Markdown: what it holds is apart
# What the lines of a traceback are known by behind a prefix that nobody has listed.
_OPENS = re.compile(r"Traceback \(most recent call last\)|(?<!\S)File \"[^\"\n]{1,400}\", line \d")
PREFIXES = 8  # that one log may teach
PREFIX = 120  # characters of one
REACH = 1000  # characters of a line in which one is looked for
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

    def words(self) -> Message:
        """What a person wrote above the error, or above a traceback that came without its first line."""
        if not (self.error or self.cut):
            return self
        lines = self.text.split("\n")
        above = list(itertools.takewhile(lambda line: line != self.line and not _TRACED.match(line), lines))
        return self._replace(text="\n".join(above), line=above[0] if above else "", error="", cut=False)


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

    def ends(self) -> bool:
        """Whether it is over where the block of a page is that holds it."""
        return self.decisive is not None or any(_FRAME.match(line.text) for line in self.lines)

    def ends_before(self, error: str) -> bool:
        """Whether the traceback is another's, and cut: no frame of it is of those that raise ``error``."""
        sign = _LAUNCHERS.get(error, "")
        frames = [line.text for line in self.lines if _FRAME.match(line.text)] if sign else []
        return bool(frames) and not any(sign in frame for frame in frames)

    def take(self) -> Message | None:
        """The message so far; this then begins anew."""
        lines, decisive, error, steps = self.lines, self.decisive, self.error, self.steps
        frames = [line for line in lines if _FRAME.match(line.text)] if decisive is None else []
        cut = bool(frames) and (self.traced or frames[-1] in lines[-BELOW:])
        self.__init__()  # type: ignore[misc]
        if not lines:
            return None
        decisive = decisive or (frames[-1] if cut else lines[0])
        text = "\n".join(line.text for line in lines)
        return Message(decisive.at, decisive.source, error, decisive.text, text, steps, cut)


class _Learned:
    """What lines of this log begin with that nobody has listed: it stands before what begins a traceback.

    Numbers in it are any numbers: a time goes on.
    """

    def __init__(self) -> None:
        self._shapes: dict[str, re.Pattern[str]] = {}

    def without(self, line: Line) -> Line:
        """``line`` without such a prefix."""
        if _TRACEBACK in line.text or 'File "' in line.text:
            begins = _OPENS.search(line.text[:REACH])
            if begins and 0 < begins.start() <= PREFIX and not HEADED.match(line.text):
                self._learn(line.text[: begins.start()])
        for shape in self._shapes.values():
            if (match := shape.match(line.text)) and match.end():
                return line._replace(text=line.text[match.end() :])
        return line

    def _learn(self, before: str) -> None:
        prefix = _DIGITS.sub("0", before.rstrip())
        if prefix and prefix not in self._shapes and len(self._shapes) < PREFIXES:
            shape = r"\d{1,18}".join(re.escape(part) for part in prefix.split("0"))
            self._shapes[prefix] = re.compile(rf"\s{{0,8}}{shape} ?")


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
        self._prefixes = _Learned()
        self.steps = 0

    def add(self, line: Line) -> None:
        """Take the next line of the log."""
        line = self._prefixes.without(line)
        self._held += len(line.text)
        if _FENCE.match(line.text):
            for each in filter(_Source.ends, self._sources.values()):
                self._finish(each)
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
        if source.traced and text and text == source.lines[-1].text:
            return  # ranks without a name print the same at one time
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
            if source.decisive is not None or source.ends_before(match[1].rpartition(".")[2]):
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
        if "rror" in text or "xception" in text or "Iter" in text or "Inter" in text or "Ex" in text:
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
