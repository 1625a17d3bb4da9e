"""``python -m vlmpatch list``: every patch."""

from __future__ import annotations

import sys

from vlmpatch.catalog.model import Catalog
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page


def listing(catalog: Catalog, say: Words) -> int:
    """Print every patch; returns 1 when the catalog is not sound."""
    made = Page()
    for entry in catalog.entries.values():
        needs = ", ".join(f"{name} {specifier}" for name, specifier in entry.requires.items())
        made.add(f"{entry.id}  [{entry.severity}; {needs}]", "head")
        made.add("  " + say.pick((entry.summary, entry.summary_zh)))
    made.show(sys.stdout)
    for problem in catalog.problems:
        print(problem, file=sys.stderr)
    return 1 if catalog.problems else 0
