"""Doctor's findings as remarks on the lines of scripts and configurations, for a CI service."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.view.ci import Annotation

_PLACE = re.compile(r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+)(?::|$)")


def remarks(findings: Iterable[Finding], named: Iterable[str]) -> list[Annotation]:
    """A remark a finding; where it stands in no file, on none.

    Args:
        findings: what doctor has to say.
        named: the files that doctor was asked to look at; evidence has the end of their names, or of those
            of files beside them.
    """
    files = [name for name in named if os.path.isfile(name)]
    return [_remark(finding, files) for finding in findings]


def _remark(finding: Finding, files: list[str]) -> Annotation:
    text = "\n".join(filter(None, (finding.title, finding.evidence, finding.fix, finding.link)))
    title = f"vlmpatch {finding.code}"
    place = _PLACE.match(finding.evidence)
    file = _file(place["file"], files) if place else ""
    return Annotation(finding.severity, file, int(place["line"]) if place else 1, title, text, finding.code)


def _file(shown: str, files: list[str]) -> str:
    """The path of the file that is shown as ``shown``; itself where nobody knows."""
    own = [name for name in files if os.path.basename(name) == os.path.basename(shown)]
    beside = [os.path.join(os.path.dirname(name), shown) for name in files]
    path = next((path for path in (*own, shown, *beside) if os.path.isfile(path)), shown)
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
