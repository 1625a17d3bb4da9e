"""A traceback as notebooks of several ages, and rich, print it: for ``bench.explain_census`` and the tests.

They point at the line that failed and print lines of its file around it; notebooks name the exception above
the traceback too, padded to a width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

HEAD = "Traceback (most recent call last)"
WIDTH = 75  # of the head of a notebook's traceback
BOX = 100  # of rich's
AROUND = 2  # lines above and below the one that failed
_FRAME = re.compile(r'  File "([^"]+)", line (\d+), in (.+)')
_RAISED = re.compile(r"((?:\w+\.)*\w+)(?:: |$)")


class Frame(NamedTuple):
    """A frame of a traceback: its file, line and function, and its code."""

    path: str
    line: int
    function: str
    code: str


Form = Callable[[str, Sequence[str]], str]


def read(text: str) -> Iterator[Frame | str]:
    """The frames of a traceback and the lines between them; the marks below the code are left out."""
    lines = [line for line in text.rstrip("\n").split("\n") if line.strip(" ~^")]
    at = 0
    while at < len(lines):
        match = _FRAME.fullmatch(lines[at])
        at += 1
        if match is None:
            yield lines[at - 1]
            continue
        begin = at
        while at < len(lines) and lines[at].startswith("    "):
            at += 1
        yield Frame(match[1], int(match[2]), match[3], lines[begin].strip() if at > begin else "")


def notebook(place: Callable[[Frame], str]) -> Form:
    """The form of a notebook in which ``place`` says where a frame is."""

    def form(text: str, around: Sequence[str]) -> str:
        read_, made = list(read(text)), []
        for number, each in enumerate(read_):
            if isinstance(each, Frame):
                made += [place(each), *_pointed(each, around), ""]
            elif each.startswith(HEAD):
                rest = (one for one in read_[number + 1 :] if isinstance(one, str))
                named = next(filter(None, map(_RAISED.match, rest)), None)
                error = named[1].rpartition(".")[2] if named else "Exception"
                made += ["-" * WIDTH, error + HEAD.rjust(WIDTH - len(error))]
            else:
                made.append(each)
        return "\n".join(made) + "\n"

    return form


def _pointed(frame: Frame, around: Sequence[str]) -> Iterator[str]:
    for number, code in _lines(frame, around):
        arrow = "> ".rjust(7 - len(str(number)), "-") if number == frame.line else ""
        yield f"{arrow}{number} {code}" if arrow else f"{number:7d} {code}"


def _lines(frame: Frame, around: Sequence[str]) -> Iterator[tuple[int, str]]:
    for number in range(max(1, frame.line - AROUND), frame.line + AROUND + 1):
        yield number, frame.code if number == frame.line else around[number % len(around)]


def _called(frame: Frame) -> str:
    return frame.function if frame.function.startswith("<") else f"{frame.function}(self, *args, **kwargs)"


def _cell(frame: Frame) -> str:
    if "<" in frame.function:
        return f"Cell In[7], line {frame.line}"
    return f"File {frame.path}:{frame.line}, in {_called(frame)}"


def boxed(text: str, around: Sequence[str]) -> str:
    """As rich prints it."""
    made, open_ = [], False

    def row(words: str) -> None:
        made.append(f"│ {words[: BOX - 4]:{BOX - 4}} │")

    for each in read(text):
        if isinstance(each, Frame):
            row(f"{each.path}:{each.line} in {each.function}")
            row("")
            for number, code in _lines(each, around):
                row(f"{'❱' if number == each.line else ' '} {number:3d} │   {code}")
            row("")
        elif each.startswith(HEAD):
            made.append("╭" + f" {HEAD} ".center(BOX - 2, "─") + "╮")
            open_ = True
        else:
            if open_:
                made.append("╰" + "─" * (BOX - 2) + "╯")
                open_ = False
            made.append(each)
    return "\n".join(made) + "\n"


FORMS: dict[str, Form] = {
    "ipython 7": notebook(lambda frame: f"{frame.path} in {_called(frame)}"),
    "ipython 8": notebook(lambda frame: f"File {frame.path}:{frame.line}, in {_called(frame)}"),
    "a cell": notebook(_cell),
    "a page of a notebook": notebook(
        lambda frame: f"[{frame.path}](https://localhost:8080/#) in {_called(frame)}"
    ),
    "rich": boxed,
}
