"""A stretch of a log -> the lines that were printed.

What lies between the program and the file changes lines: a logger puts a whole traceback into one JSON
string, a web page has ``<br>``, a terminal breaks lines at its width, two ranks share a line. Here, and
nowhere else, this is taken back.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator

LINE = 4096  # what is kept of one line
NARROWEST, WIDEST = 60, 200  # columns at which terminals and pagers break lines
COLUMNS = (80, 100, 120)  # a single line of such a length may have been cut
BROKEN = 3  # different lines of one same, greatest length: a terminal has broken them
_CUT = "…".encode()
_DOTS = b"..."  # as pagers mark what they cut
_BORDER = tuple(
    sign.encode() for sign in "│┃║╮╯┐┘"
)  # where a line of a box ends, which is as wide as its box
_CONTINUING = bytes(range(0x80, 0xC0))
_LETTER = {b"n": b"\n", b"r": b"\n", b"t": b"\t"}
_ESCAPE = re.compile(rb'\\(?:u([0-9a-fA-F]{4})|(["\\/nrt]))')
_WITHIN = re.compile(
    rb'\\n(?:\[[\w ]{1,20}\]:? ?)?(?:[A-Za-z_.]{0,120}(?:Error|Exception)\b| *File \\{1,3}")|Traceback'
    rb'|": "[A-Za-z_.]{0,120}(?:Error|Exception)\b'
)
# A sign that Markdown keeps as it is, and a path of Windows or a text in quotes, where it is none.
_ESCAPED = re.compile(rb"\\([_*\[\]<>#`])")
_BACKSLASH = re.compile(rb"\\[A-Za-z0-9]")
_BOXED = b'{"log":"'  # Docker's, a line of the log each
_BREAK = re.compile(rb"<br\s*/?>|</(?:p|div|li|tr)>", re.IGNORECASE)
_TAG = re.compile(rb"</?(?:p|div|span|pre|code|td|tr|li|ul|font|b|i|a)\b[^<>]{0,300}>", re.IGNORECASE)
_ENTITY = re.compile(rb"&(?:lt|gt|amp|quot|apos|nbsp|#\d{2,5}|#x[0-9a-fA-F]{2,4});")
_NUMBER = re.compile(rb"<td\b[^<>]{0,300}>\s{0,4}\d{1,7}\s{0,4}</td>", re.IGNORECASE)  # of a line, in a table
# Where a line began that a shell has put behind others, with a space between.
_FLAT = re.compile(
    rb" (?=\[rank ?\d{1,6}\]:)"
    rb"|(?<!\]:)(?<!\]: )(?<!\]:  ) (?=Traceback \(most |File \"|[A-Za-z_][\w.]{0,120}(?:Error|Exception): )"
)
_SHARED = re.compile(rb"(?<=[^\s\[])(?=\[rank ?\d{1,6}\]: ?Traceback )")
# What a line begins with that is not the rest of another.
_BEGINS = re.compile(
    rb"\s{2}|\s*$|[\[>]|\(\w{1,60} pid=|Traceback |[A-Za-z_][\w.]{0,120}(?:Error|Exception|Warning)\b"
    rb"|[\w-]{1,60}[:|]|\d{4}-\d\d|\x1b"
)


def lines(given: list[bytes], first: int) -> Iterator[tuple[int, bytes]]:
    """The lines as they were printed, numbered as those ``given``, the first of which is ``first``."""
    for number, line in _rejoined(given, first):
        for whole in _unfolded(line):
            for raw in whole.split(b"\r"):
                if raw.strip():
                    yield number, raw


def _unfolded(line: bytes) -> list[bytes]:
    """``line`` as it was before it was put into a string, a web page, or behind another rank's."""
    bare = line.strip()
    if bare[:1] in (b"[", b'"') and (listed := _listed(bare.removesuffix(b","))):
        return [each for whole in listed for each in _unfolded(whole.encode(errors="replace"))]
    if b"\\n" in line and not line.startswith(_BOXED):
        for _ in range(2):  # a string within a string
            if b"\\n" in line and _WITHIN.search(line):
                line = _ESCAPE.sub(_letter, line.replace(b'": "', b'":\n').replace(b': \\"', b':\n\\"'))
    if line.startswith(b"{") and b"\\u" in line:
        line = _ESCAPE.sub(_letter, line)
    if b"<br" in line or b"</td>" in line or (b"&" in line and _ENTITY.search(line)):
        text = _TAG.sub(b"", _NUMBER.sub(b"", _BREAK.sub(b"\n", line))).decode("utf-8", errors="replace")
        line = html.unescape(text).replace("\xa0", " ").encode()
    if b"]: Traceback " in line:
        line = _SHARED.sub(b"\n", line)
    if b"\n" not in line and (_flat(line) or (len(line) > LINE and b"Traceback (most " in line)):
        line = _FLAT.sub(b"\n", line)
    if b"\\" in line and _ESCAPED.search(line) and not _BACKSLASH.search(line):
        line = _ESCAPED.sub(rb"\1", line)
    return line.split(b"\n")


def _flat(line: bytes) -> bool:
    """Whether a traceback lies in ``line``, as a page shows it that knows no lines."""
    frames = line.count(b'File "')
    return frames > 1 or (frames == 1 and b"Traceback (most recent call last): " in line)


def _listed(text: bytes) -> list[str]:
    """The lines in ``text`` where it is JSON: a list of them, or one of a list that was spread over lines."""
    of_strings = text[:1] == b'"' or text[1:].lstrip()[:1] in (b"[", b'"')
    if not of_strings or not text.endswith((b"]", b'"')):
        return []
    try:
        found: list[object] = [json.loads(text)]
    except (ValueError, RecursionError):
        return []
    strings = []
    while found:
        each = found.pop()
        if isinstance(each, list):
            found.extend(reversed(each))
        elif isinstance(each, str):
            strings += each.split("\n")
    return strings


def _letter(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return chr(int(match[1], 16)).encode("utf-8", errors="replace")
    return _LETTER.get(match[2], match[2])


def _rejoined(given: list[bytes], first: int) -> Iterator[tuple[int, bytes]]:
    """The lines that a terminal broke at its width, whole again; those that it cut end in ``…``."""
    width = broken_at(given)
    held, begin, full = b"", first, False
    for number, line in enumerate(given, first):
        if full and not _BEGINS.match(line):
            held += line
        else:
            if number > first:
                yield begin, _ended(held, full)
            held, begin = line, number
        full = _columns(line) == width and not _boxed(line)
    yield begin, _ended(held, full)


def _ended(line: bytes, full: bool) -> bytes:
    if line.endswith(_DOTS) and _columns(line) >= NARROWEST:
        return line.removesuffix(_DOTS) + _CUT
    return line + _CUT if full or (_columns(line) in COLUMNS and not _boxed(line)) else line


def _boxed(line: bytes) -> bool:
    """Whether ``line`` is one of a box."""
    return line.rstrip().endswith(_BORDER)


def broken_at(given: list[bytes]) -> int:
    """The width at which these lines were broken, or -1."""
    width = max(map(_columns, given))
    if not NARROWEST <= width <= WIDEST:
        return -1
    return width if len({line for line in given if _columns(line) == width}) >= BROKEN else -1


def _columns(line: bytes) -> int:
    """How many characters ``line`` has: the bytes of UTF-8 that begin one."""
    return len(line.translate(None, _CONTINUING))
