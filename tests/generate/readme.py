"""The README's table of what vlmpatch ends, in both languages."""

from __future__ import annotations

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
MOST = 3


def filled(language: str) -> str:
    """The README with its table made anew."""
    return pages.filled(PAGES[language].read_text("utf-8"), BEGIN, table(language))


def table(language: str) -> str:
    """A line for each row of each failure; patches that were named in the line above are the same."""
    say, folder, before, body = Words(language), str(pages.DOCS[language].relative_to(pages.ROOT)), "", []
    for failure in KNOWN.known.values():
        for row in failure.readme:
            patches = _patches(failure, language)
            why = f"[{failure.id}]({folder}/reference/failures.md#{failure.id.lower()})"
            under = pages.rebased(say.pick(row.under), folder)
            body.append((say.pick(row.see), under, why, SAME[language] if patches == before else patches))
            before = patches
    return pages.table(HEAD[language], body)


def _patches(failure: Failure, language: str) -> str:
    ids = [f"`{entry.id}`" for entry in failure.patches(CATALOG)]
    listed = JOIN[language].join(ids[:MOST])
    if len(ids) <= MOST:
        return listed or "–"
    count = len(ids) - MOST if language == "en" else len(ids)
    return MORE[language].format(listed=listed, count=count)
