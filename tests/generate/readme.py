"""The README's table of what vlmpatch ends, in both languages."""

from __future__ import annotations

from collections.abc import Iterator

from tests.generate.failures import CATALOG, KNOWN
from tests.lab import pages
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


def filled(language: str) -> str:
    """The README with its table made anew."""
    return pages.filled(PAGES[language].read_text("utf-8"), BEGIN, tables(language))


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
