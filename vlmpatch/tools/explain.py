"""``python -m vlmpatch explain``: a patch id, or a log, to words."""

from __future__ import annotations

import ast
import os
import re
import sys

from vlmpatch.catalog import Catalog, Entry, patch_path
from vlmpatch.settings import suggestion


def patch_page(entry: Entry, catalog: Catalog) -> str:
    """The page of one patch: its summary in both languages, then what its file says of itself."""
    path = patch_path(os.path.join(os.path.dirname(catalog.path), "patches"), entry.module)
    with open(path, encoding="utf-8") as handle:
        words = ast.get_docstring(ast.parse(handle.read())) or ""
    needs = ", ".join(f"{name} {specifier}" for name, specifier in entry.requires.items())
    head = [
        entry.id,
        "",
        entry.summary,
        entry.summary_zh,
        "",
        f"Severity: {entry.severity}. Needed by: {needs}.",
    ]
    switch = f"Switch it off with VLMPATCH_DISABLE={entry.id}. Source: {path}"
    return "\n".join([*head, "", words.strip(), "", switch])


def matching(text: str, catalog: Catalog) -> list[Entry]:
    """The patches one of whose symptoms occurs in ``text``."""
    return [
        entry
        for entry in catalog.entries.values()
        if any(re.search(symptom, text) for symptom in entry.symptoms)
    ]


def explain(what: str, catalog: Catalog) -> int:
    """Print the page of patch ``what``, or of the patches that the log ``what`` (``-``: stdin) shows.

    Returns:
        0 when something was explained, 1 when the log shows nothing known, 2 when ``what`` is neither.
    """
    if what in catalog.entries:
        print(patch_page(catalog.entries[what], catalog))
        return 0
    try:
        if what == "-":
            log = sys.stdin.buffer.read()
        else:
            with open(what, "rb") as handle:
                log = handle.read()
    except OSError as error:
        hint = suggestion(what, catalog.entries)
        print(f"{what!r} is no patch id, and as a log: {error.strerror}. {hint}", file=sys.stderr)
        return 2
    found = matching(log.decode("utf-8", errors="replace"), catalog)
    if not found:
        print("No failure that vlmpatch knows shows in this log.")
        return 1
    for entry in found:
        print(f"{entry.id} ({entry.severity})\n  {entry.summary}\n  {entry.summary_zh}")
    print("\npython -m vlmpatch explain ID says more; python -m vlmpatch doctor, what applies here.")
    return 0
