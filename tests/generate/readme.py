"""The README's table of what most people meet first: the failures that say how they stand in it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.generate.failures import KNOWN
from tests.lab import pages
from vlmpatch.tools.view.language import Words

PAGES = {"en": pages.ROOT / "README.md", "zh": pages.ROOT / "README.zh-CN.md"}
BEGIN = "<!-- generated from failures/: make generate -->"
HEAD = {"en": ("what you see", "under", "why"), "zh": ("看到的现象", "场景", "原因")}


def filled(language: str) -> str:
    """The README with its table made anew."""
    table = pages.table(HEAD[language], [*_rows(language)])
    return pages.filled(PAGES[language].read_text("utf-8"), BEGIN, table)


def _rows(language: str) -> Iterator[tuple[str, ...]]:
    say, folder = Words(language), str(pages.DOCS[language].relative_to(pages.ROOT))
    for failure in KNOWN.known.values():
        why = f"[{failure.id}]({folder}/reference/failures.md#{failure.id.lower()})"
        for row in failure.readme:
            yield say.pick(row.see), pages.rebased(say.pick(row.under), folder), why
