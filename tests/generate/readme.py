"""The README's table of what vlmpatch ends, and its counts of what was run, in both languages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tests.generate.failures import CATALOG, KNOWN
from tests.innocents.texts import OWN, PROGRAMS
from tests.lab import pages
from tests.trust import record
from vlmpatch.tools.explain.failures import Failure
from vlmpatch.tools.view.language import Words

PAGES = {"en": pages.ROOT / "README.md", "zh": pages.ROOT / "README.zh-CN.md"}
BEGIN = "<!-- generated from failures/: make generate -->"
HEAD = {"en": ("what you see", "under", "why", "patch"), "zh": ("看到的现象", "场景", "原因", "补丁")}
SAME = {"en": "the same", "zh": "同上"}
MORE = {"en": "{listed} and {count} more", "zh": "{listed} 等 {count} 个"}
JOIN = {"en": ", ", "zh": "、"}
MOST = 2
FIRST = 12  # rows; the others are folded
FOLDED = {
    "en": "{count} more: loading, saving, scripts of older releases, wrong training without an error",
    "zh": "另外 {count} 项：加载与保存、按旧版本写的脚本、没有报错的训练错误",
}
# The sentences that count; each group is the number of its name.
COUNTED = {
    "en": (
        r"(?P<programs>[\d,]+) programs that have nothing to do with it",
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


def filled(language: str) -> str:
    """The README with its table and its counts made anew."""
    text = pages.filled(PAGES[language].read_text("utf-8"), BEGIN, tables(language))
    return counted(text, language, counts())


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


def tables(language: str) -> str:
    """What most people meet, and all else behind a click."""
    head, rows = HEAD[language], list(_rows(language))
    summary = FOLDED[language].format(count=len(rows) - FIRST)
    fold = f"<details markdown>\n<summary>{summary}</summary>"
    return "\n\n".join((pages.table(head, rows[:FIRST]), fold, pages.table(head, rows[FIRST:]), "</details>"))


def _rows(language: str) -> Iterator[tuple[str, ...]]:
    """A line for each row of each failure; patches that were named in the line above are the same."""
    say, folder, before = Words(language), str(pages.DOCS[language].relative_to(pages.ROOT)), ""
    for failure in KNOWN.known.values():
        for row in failure.readme:
            patches = _patches(failure, language)
            why = f"[{failure.id}]({folder}/reference/failures.md#{failure.id.lower()})"
            under = pages.rebased(say.pick(row.under), folder)
            yield say.pick(row.see), under, why, SAME[language] if patches == before else patches
            before = patches


def _patches(failure: Failure, language: str) -> str:
    ids = [f"`{entry.id}`" for entry in failure.patches(CATALOG)]
    listed = JOIN[language].join(ids[:MOST])
    if len(ids) <= MOST:
        return listed or "–"
    count = len(ids) - MOST if language == "en" else len(ids)
    return MORE[language].format(listed=listed, count=count)
