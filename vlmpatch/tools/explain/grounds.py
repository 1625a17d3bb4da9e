"""What is known of an error that no symptom knows: its class, what it says, the part of a program it ends in.

``grounds.toml`` lists them, the most certain first, each with the page that it leads to: one of a foreign
failure, never of one of ours. A part is known by the paths and functions of frames. Of a traceback the
deepest frame counts that belongs to any part: what an error is about is said by where it was raised, not by
who called. Where a traceback is cut, whatever came later came from within its last frame, and what its last
line of code calls would be the next.

Of an exception that says nothing of its own, the line of code that raised it says what it is about.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from vlmpatch.tools.explain import vocabulary
from vlmpatch.tools.explain.messages import HEADED, WIDE, Message
from vlmpatch.tools.explain.symptoms import CUT, Pattern, pattern, squeeze

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDERS = 3  # of a path, what says which part of a program it is
GOES_ON = 3  # lines in which an exception may go on to say what it is
# A frame as Python, rich, notebooks of three ages and pytest print it: its file, and its function.
_CALL = re.compile(
    r"File [\"“”]([^\"“”\n]{1,400})[\"“”], line \d{1,7}(?:, in ([\w.<>]{1,120}))?"
    r"|([^\s│|\"“”\[\]()]{1,300}\.pyx?)(?::\d{1,7}|\]\([^)\s]{1,300}\))?,? in ([\w.<>]{1,120})"
)
# An exception that a person quotes in a line of prose.
_QUOTED = re.compile(
    r"(?<![A-Za-z0-9_])([A-Za-z][A-Za-z0-9_]{0,80}(?:Error|Exception))[`*]{0,2} ?[:：] {0,3}(?=\S)",
    re.IGNORECASE,
)
# One that a title names, as people write it.
_TITLED = re.compile(
    r"(?<![A-Za-z0-9_])((?:Key|Attribute|Type|Value|Index|Runtime|Assertion|Import|Module ?Not ?Found|Name"
    r"|File ?Not ?Found|OS|Not ?Implemented|Zero ?Division|Unicode ?Decode) ?Error"
    r"|Stop ?Iteration)s?(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
# What a title says an error says, without its class; and the classes that such words are tried as.
_SAYS = re.compile(
    r"(?:^|[\s\])】])(?:errors?|bug|exception|报错|错误|异常) ?[:：] {0,3}(?=\S)", re.IGNORECASE
)
_ANY = ("ValueError", "RuntimeError")
_BRACKETS = (("(", ")"), ("（", "）"), ("`", "`"), ("**", "**"))
# The name of a class, of which some say enough.
_CLASS = re.compile(r"(?<![A-Za-z0-9_])([A-Z][A-Za-z0-9]{2,60}Error)(?![A-Za-z0-9_])")
_NO_KIND = "Exception"  # a class that says nothing
_VAGUE = {"KeyError", "IndexError", "AssertionError"}  # of these a person's prose must say more
# What stands in front of a line of code in a traceback: rich's and a notebook's mark and number.
_MARKED = re.compile(r"\s*(?:[│|>❱-]{1,6}\s*){0,4}\d{1,6}(?:\s|$)(?:\s*[│|]){0,4}|\s*[│|]\s*")
# The line that a notebook or rich points at: those around it are of its file, and did not fail.
_POINTS = re.compile(r"\s*[│|]?\s{0,4}(?:-{0,6}>|❱)\s{0,6}\d{1,7}(?!\S)")
_RUN = "runpy"  # what calls the module that is the program
_INSIDE = (" ", "\t")  # what the code of a frame begins with
_RAISES = re.compile(r"\s*raise\s")
_BEGINS_TO_RAISE = re.compile(r"raise (?:[A-Za-z_]\w{0,80}\.){0,6}[A-Za-z_]\w{0,80}\($")
_TEXT = re.compile(r"[rfRF]{0,2}[\"']")
_CALLED = re.compile(r"([A-Za-z_]\w{0,80})\(")
_POINTED = re.compile(r"[\s~^│|]*$")  # the marks that Python puts below it
# The line of code that raises it, and begins to say what.
_RAISED = re.compile(
    r"raise (?:[A-Za-z_]\w{0,80}\.){0,6}([A-Za-z_]\w{0,80}(?:Error|Exception))"
    r"\([rfRF]{0,2}[\"']([^\n]{1,300})"
)
# The key that was not there, without what a person goes on to say.
_KEY = re.compile(r"KeyError[`*]{0,2} ?[:：] {0,3}(['\"])[^'\"\n]{0,200}\1", re.IGNORECASE)


class Ground(NamedTuple):
    """One thing that leads to a page; of each list that is not empty one must be there, of ``told`` all."""

    page: str
    error: tuple[str, ...] = ()  # ends of the names of exceptions
    says: tuple[Pattern, ...] = ()
    told: tuple[tuple[str, ...], ...] = ()
    part: tuple[str, ...] = ()
    none: tuple[Pattern, ...] = ()
    title: bool = False  # words of a title are enough, that names no exception
    line: tuple[tuple[str, ...], ...] = ()  # of the code that raised it
    bare: bool = False  # it says nothing

    def fits(self, error: str, said: str, part: str, line: str) -> bool:
        """Whether ``error`` that says ``said``, raised in ``part`` by the code ``line``, is of this kind."""
        if self.error and not (error.lower().endswith(self.error) if error else self.title):
            return False
        if self.part and part not in self.part:
            return False
        squeezed = squeeze(said)
        if self.says and not any(each.within(squeezed) for each in self.says):
            return False
        if any(each.within(squeezed) for each in self.none):
            return False
        if self.line and not vocabulary.tells(line, self.line):
            return False
        if self.bare and squeezed and not squeezed.rstrip(":").endswith("error"):
            return False
        return not self.told or vocabulary.tells(said, self.told)


class Grounds(NamedTuple):
    """All grounds in their order, and the parts of programs by what their frames hold.

    ``within``: what a part alone leads to. ``says_of``: what exceptions of one name only say.
    """

    listed: tuple[Ground, ...]
    parts: dict[str, tuple[str, ...]]
    within: dict[str, str]
    says_of: dict[str, tuple[str, ...]]

    def of(self, message: Message) -> str:
        """The page that the exception of ``message`` leads to, or nothing."""
        begin = max(message.text.rfind(message.line), 0)
        text, line = said(message.text[begin:].lstrip()), code(message.text[:begin])
        raised, part = _RAISED.search(line), self._part(message.text)
        if raised and message.error != raised[1] and raised[1].startswith(message.error):
            return self._raised(line, part)  # the log ends within its name
        return self._page(message.error, text, part, line)

    def cut(self, message: Message) -> str:
        """The page that a traceback without its exception leads to by its last line or part, or nothing.

        A notebook names the exception above its traceback, too.
        """
        line, part = code(message.text), self._part(message.text)
        head = HEADED.match(message.text)
        if head and head[1] == _NO_KIND:
            head = None
        named = self._page(head[1].rpartition(".")[2], f"{head[1]}: {CUT}", part, line) if head else ""
        within = "import" if _imports(frames_of(message.text)) else self._part(message.text, cut=True)
        return self._raised(line, part) or named or self.within.get(within, "")

    def quoted(self, message: Message, title: str) -> tuple[str, str]:
        """The page of an exception that a person quotes, in the title before elsewhere, and its line."""
        part = self._part(message.text)
        for text in (title, message.text):
            for match in _QUOTED.finditer(text):
                before = text[: match.start()].rpartition("\n")[2]
                words = _bracketed(before, said(text[match.start() :]))
                if page := self._page(match[1], words, part, before):
                    return page, _line(text, match.start())
        if page := self._raised(title, part):
            return page, title
        for match in _TITLED.finditer(title):
            error = match[1].replace(" ", "").lower()
            # A key stands behind a colon: other words after a KeyError are no key.
            words = "" if error == "keyerror" else title[match.end() :]
            if page := self._page(error, words, part, title):
                return page, title
        page, at = self._unnamed(message.text, part)
        if not page:
            page, at = self._classed(message.text, part)
        return page, _line(message.text, at)

    def titled(self, title: str) -> str:
        """The page that words of ``title`` lead to, which names no exception; or nothing."""
        page = self._page("", title, "", "") if title else ""
        if page or not (match := _SAYS.search(title)):
            return page
        words = title[match.end() :]
        return next(filter(None, (self._page(error, words, "", "") for error in _ANY)), "")

    def _unnamed(self, text: str, part: str) -> tuple[str, int]:
        """The page of what a line of ``text`` says that only one kind of exception says, and where."""
        lower = f"\n{text.lower()}"
        for error, phrases in self.says_of.items():
            for at in filter(lambda at: at >= 0, map(lower.find, phrases)):
                begin = lower.rfind("\n", 0, at + 1)
                words = said(text[begin:])
                if page := self._page(error, words, part, words):
                    return page, begin
        return "", 0

    def _classed(self, text: str, part: str) -> tuple[str, int]:
        """The page of a class that ``text`` names and that says enough by itself, and where."""
        for match in _CLASS.finditer(text):
            if match[1] not in _VAGUE and (page := self._page(match[1], "", part, "")):
                return page, match.start()
        return "", 0

    def _raised(self, line: str, part: str) -> str:
        """The page of the exception that the code ``line`` raises with words of its own, or nothing."""
        match = _RAISED.search(line)
        return self._page(match[1], f"{match[1]}: {match[2]}", part, "") if match else ""

    def _page(self, error: str, said: str, part: str, line: str) -> str:
        return next((each.page for each in self.listed if each.fits(error, said, part, line)), "")

    def _part(self, text: str, cut: bool = False) -> str:
        """The part that the deepest frame of ``text`` belongs to which belongs to one."""
        for frame in reversed(frames_of(text, cut)):
            for part, signs in self.parts.items():
                if any(sign in frame for sign in signs):
                    return part
        return ""


def _imports(frames: list[str]) -> bool:
    """Whether a traceback that is cut in the last of ``frames`` ends while that module is being imported."""
    above = frames[-2] if len(frames) > 1 else _RUN
    return frames[-1:] != [above] and _RUN not in above and bool(frames) and frames[-1].endswith(":<module> ")


def _bracketed(before: str, said: str) -> str:
    """``said``, up to where the bracket or the quotation marks end that stand right ``before`` it."""
    closes = next((closes for opens, closes in _BRACKETS if before.endswith(opens)), "")
    within = said.partition(closes)[0] if closes else said
    return said if closes == ")" and "(" in within else within


def _line(text: str, at: int) -> str:
    """The line of ``text`` that ``at`` is in."""
    return text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0]


def names_error(title: str) -> bool:
    """Whether ``title`` names an exception."""
    return bool(_QUOTED.search(title) or _TITLED.search(title) or _CLASS.search(title))


def code(text: str) -> str:
    """The line of code that the traceback ``text`` ends in, and what it begins to say on the next.

    It stands below the last frame, or is pointed at there; without a frame it is the last line, where the
    name of an exception that was cut may be behind it.
    """
    lines = [line for line in text.rstrip().split("\n") if not _POINTED.match(line)] or [""]
    at = _decisive(lines)
    found, below = ("".join(map(_unmarked, lines[each : each + 1])) for each in (at, at + 1))
    return found + below if _BEGINS_TO_RAISE.search(found) and _TEXT.match(below) else found


def _decisive(lines: list[str]) -> int:
    """Which of ``lines`` is the code that they end in."""
    framed = max((at for at, line in enumerate(lines) if _CALL.search(line)), default=-1)
    pointed = max((at for at, line in enumerate(lines) if _POINTS.match(line)), default=-1)
    raising = max((at for at, line in enumerate(lines) if _RAISES.match(line)), default=-1)
    if pointed > framed:
        return pointed
    last = len(lines) - 1
    if framed == last or (framed >= 0 and lines[last].startswith(_INSIDE)):
        return max(framed + 1, raising)
    raised = _RAISED.search(lines[last - 1]) if last else None
    return last - bool(raised and raised[1].startswith(lines[last].strip()))


def _unmarked(line: str) -> str:
    """``line`` without the number, the mark and the box that stand around it."""
    return _MARKED.sub("", line, count=1).rstrip(" │").strip()


def said(text: str) -> str:
    """What the exception says that ``text`` begins with: its line, and those that it goes on in."""
    if key := _KEY.match(text):
        return key[0]
    first, *rest = text.split("\n", GOES_ON + 1)
    lines = [first]
    for line in rest[:GOES_ON]:
        if len(lines[-1]) < WIDE and not lines[-1].rstrip().endswith((":", "：")):
            break
        if vocabulary.printed(line):
            break
        lines.append(line)
    return " ".join(lines)


def frames_of(text: str, cut: bool = False) -> list[str]:
    """The frames of the traceback ``text``, as parts and stages know them; ``cut``: and the next."""
    found = list(_frames(text)) if ".py" in text else []
    return [*found, *(f"/:{name.lower()} " for name in _CALLED.findall(code(text)))] if cut else found


def _frames(text: str) -> Iterator[str]:
    for match in _CALL.finditer(text):
        path, function = match[1] or match[3], match[2] or match[4] or ""
        path = path.replace("\\", "/").lower()
        _, installed, inside = path.rpartition("-packages/")
        # Of a checkout the last folders: disks are called /data, too.
        near = inside if installed else "/".join(path.split("/")[-FOLDERS:])
        yield f"/{near}:{function.rpartition('.')[2].lower()} "


@functools.cache
def read() -> Grounds:
    """The grounds."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "grounds.toml"), "rb") as handle:
        table = tomllib.load(handle)
    stems = vocabulary.read().stems
    listed = tuple(
        Ground(
            each["page"],
            tuple(name.lower() for name in each.get("error", ())),
            tuple(map(pattern, each.get("says", ()))),
            stems(each.get("told", ())),
            tuple(each.get("part", ())),
            tuple(map(pattern, each.get("not", ()))),
            each.get("title", False),
            stems(each.get("line", ())),
            each.get("bare", False),
        )
        for each in table["grounds"]
    )
    parts, says_of = (
        {name: tuple(signs) for name, signs in table[key].items()} for key in ("parts", "says-of")
    )
    return Grounds(listed, parts, dict(table["within"]), says_of)
