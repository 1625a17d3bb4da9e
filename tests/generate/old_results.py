"""docs/old-results.md: beside what was written there, the silent failures that it does not name yet."""

from __future__ import annotations

import re

from tests.generate.failures import KNOWN
from tests.lab import pages
from vlmpatch.tools.explain.failures import Failure
from vlmpatch.tools.view.language import Words

PAGES = {language: folder / "old-results.md" for language, folder in pages.DOCS.items()}
BEGIN = "<!-- generated from failures/: make generate -->"
HEAD = {
    "en": ("failure", "who is affected", "what happened"),
    "zh": ("故障", "谁受影响", "后果"),
}


def filled(language: str) -> str:
    """The page with a row for each, by what its file says: nobody has to write it twice."""
    say, text = Words(language), PAGES[language].read_text("utf-8")
    named = re.findall(r"\bF\d+", pages.filled(text, BEGIN, ""), re.ASCII)
    rows = [
        (f"[{each.id}](reference/failures.md#{each.id.lower()})", say.pick(each.where), say.pick(each.title))
        for each in KNOWN.known.values()
        if silent(each) and each.id not in named
    ]
    return pages.filled(text, BEGIN, pages.table(HEAD[language], rows) if rows else "")


def silent(failure: Failure) -> bool:
    """Whether it shows in some cases without an error."""
    return re.search("nothing|no error", failure.see[0]) is not None
