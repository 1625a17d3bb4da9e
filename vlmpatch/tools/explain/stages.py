"""What a program was doing when it ended, by the frames of its traceback: ``stages.toml``.

It is said of an error that nothing here knows, and of a traceback that is cut: where it ended is known there,
and what to look at next, though not the cause.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import NamedTuple

from vlmpatch.tools.explain import grounds

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Stage(NamedTuple):
    """One thing that a program does; its texts in both languages.

    ``again``: the stage of the deepest frame, and one that a frame above it belongs to.
    """

    id: str
    signs: tuple[str, ...]
    again: tuple[str, ...]
    words: tuple[str, str]
    look: tuple[str, str]


def of(text: str, cut: bool = False) -> Stage | None:
    """The stage in which the traceback ``text`` ends, which may be cut."""
    known = read()
    passed = [stage for frame in grounds.frames_of(text, cut) if (stage := _named(frame, known))]
    if not passed:
        return None
    callers = {stage.id for stage in passed}
    twice = (stage for stage in known if stage.again and stage.again[0] == passed[-1].id)
    return next((stage for stage in twice if stage.again[1] in callers), passed[-1])


def _named(frame: str, known: tuple[Stage, ...]) -> Stage | None:
    return next((stage for stage in known if any(sign in frame for sign in stage.signs)), None)


@functools.cache
def read() -> tuple[Stage, ...]:
    """All stages, in their order."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "stages.toml"), "rb") as handle:
        listed = tomllib.load(handle)["stages"]
    return tuple(
        Stage(
            each["id"],
            tuple(each.get("signs", ())),
            tuple(each.get("again", ())),
            (each["while"], each["while_zh"]),
            (each["look"], each["look_zh"]),
        )
        for each in listed
    )
