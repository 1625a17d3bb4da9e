"""``python -m vlmpatch doctor``: what stands in the way here, what would be done, and why."""

from __future__ import annotations

import json
import sys

from vlmpatch.catalog.model import Catalog
from vlmpatch.tools.doctor.examination import Asked, examine
from vlmpatch.tools.doctor.remarks import remarks
from vlmpatch.tools.doctor.views import data, digest, markdown, page
from vlmpatch.tools.view import ci
from vlmpatch.tools.view.language import Words


def doctor(
    catalog: Catalog, asked: Asked, say: Words, view: str = "text", strict: bool = False, form: str = ""
) -> int:
    """Print one view: ``text``, ``all``, ``json``, ``markdown``, ``digest`` or ``annotations``.

    Args:
        catalog: what is known.
        asked: what to look at.
        say: the language.
        view: which.
        strict: count warnings too.
        form: of annotations, one of ``ci.FORMS``.

    Returns:
        0 when every patch that is needed can be had, else 1; ``strict`` counts warnings too.
    """
    findings = examine(catalog, asked, say, revisions=view in ("all", "json", "markdown"))
    if view == "json":
        print(json.dumps(data(findings), ensure_ascii=False, indent=2))
    elif view == "markdown":
        print(markdown(findings, say))
    elif view == "digest":
        # In one write: nodes that share an output must not share a line.
        sys.stdout.write(f"{digest(findings)}\n")
    elif view == "annotations":
        made = remarks(findings.findings, asked)
        if made or form in ci.WHOLE:
            print(ci.lines(made, form))
    else:
        page(findings, say, view == "all").show(sys.stdout)
    return 0 if findings.sound and (findings.spotless or not strict) else 1
