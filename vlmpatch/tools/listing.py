"""``python -m vlmpatch list``: every patch."""

from __future__ import annotations

import json
import sys
from typing import Any

from vlmpatch.catalog.model import Catalog
from vlmpatch.support import log
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page

SCHEMA = 1  # of --json


def data(catalog: Catalog) -> dict[str, Any]:
    """Every patch for ``--json``."""
    return {
        "schema": SCHEMA,
        "patches": [
            {
                "id": entry.id,
                "set": entry.set or None,
                "failures": list(entry.failures),
                "severity": entry.severity,
                "summary": entry.summary,
                "summary_zh": entry.summary_zh,
                "targets": list(entry.targets),
                "requires": dict(entry.requires),
                "upstream": list(entry.upstream),
            }
            for entry in catalog.entries.values()
        ],
        "problems": [str(problem) for problem in catalog.problems],
    }


def listing(catalog: Catalog, say: Words, as_data: bool = False) -> int:
    """Print every patch; returns 1 when the catalog is not sound."""
    if as_data:
        print(json.dumps(data(catalog), ensure_ascii=False, indent=2))
        return 1 if catalog.problems else 0
    made = Page()
    for entry in catalog.entries.values():
        needs = ", ".join(f"{name} {specifier}" for name, specifier in entry.requires.items())
        made.add(f"{entry.id}  [{say(entry.severity)}{say.mark('; ')}{needs}]", "head")
        made.add("  " + say.pick((entry.summary, entry.summary_zh)))
        if entry.set:
            made.add(
                "  " + say("Not vlmpatch's own: of the patch set {set}.", set=catalog.sets[entry.set]), "warn"
            )
    made.show(sys.stdout)
    for problem in catalog.problems:
        words = f"{problem.where}: {say.told(f'{problem.what}. {problem.remedy}')}"
        if not log.was_printed(f"vlmpatch: {words}"):  # by the import of this very process
            print(words, file=sys.stderr)
    return 1 if catalog.problems else 0
