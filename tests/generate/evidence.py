"""The counts of docs/evidence.md: the programs that must not notice, and what ``tests.trust`` tried last."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.innocents.texts import OWN, PROGRAMS
from tests.lab import pages
from tests.trust import record

# The sentences that count; each group is the number of its name.
COUNTED = {
    "en": (
        r"(?P<programs>[\d,]+) programs that have nothing to do with vlmpatch",
        r"so do (?P<beside>[\d,]+) more beside Lightning",
        r"takes the (?P<patches>[\d,]+) patches of that stack through (?P<orders>[\d,]+) orders of\s+"
        r"events, (?P<faults>[\d,]+) faults, (?P<rounds>[\d,]+) rounds of undo and redo, "
        r"and (?P<threads>[\d,]+) threads",
    ),
    "zh": (
        r"(?P<programs>[\d,]+) 个与它无关的程序",
        r"另有 (?P<beside>[\d,]+) 个与 Lightning",
        r"让该环境的 (?P<patches>[\d,]+) 个补丁经历 (?P<orders>[\d,]+) 种事件顺序、"
        r"(?P<faults>[\d,]+) 次故障、\s*(?P<rounds>[\d,]+) 轮撤销与恢复以及 (?P<threads>[\d,]+) 个线程",
    ),
}


def page(language: str) -> Path:
    """Where the page lies."""
    return pages.DOCS[language] / "evidence.md"


def filled(language: str) -> str:
    """The page with its counts made anew."""
    return counted(page(language).read_text("utf-8"), language, counts())


def counts() -> dict[str, int]:
    """How many programs there are, and what ``python -m tests.trust`` counted last."""
    beside = sum(len(programs) for programs, _ in OWN.values())
    return {"programs": len(PROGRAMS), "beside": beside, **record.read()}


def counted(text: str, language: str, numbers: Mapping[str, int]) -> str:
    """``text`` with ``numbers`` in the sentences that count.

    Raises:
        ValueError: a sentence is not there.
    """
    for sentence in COUNTED[language]:
        found = re.search(sentence, text)
        if found is None:
            raise ValueError(f"the page has no sentence {sentence}")
        for name in reversed(found.groupdict()):
            text = f"{text[: found.start(name)]}{numbers[name]:,}{text[found.end(name) :]}"
    return text
