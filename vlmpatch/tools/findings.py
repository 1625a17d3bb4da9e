"""What doctor and its lint have to say: one finding, and how weighty it is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

SEVERITIES = ("error", "warning", "note")


class Finding(NamedTuple):
    """Something worth a user's attention.

    Attributes:
        code: stable; scripts may rely on it.
        severity: ``error``: a patch that is needed is not available, or nothing is; ``warning``: this ends in
            a failure; ``note``: worth knowing.
        title: what it is, in one sentence.
        evidence: what was seen, and where.
        fix: the exact line to add or change.
        link: where to read on.
        patches: those that end it here, where it is then no more than a note.
    """

    code: str
    severity: str
    title: str
    evidence: str = ""
    fix: str = ""
    link: str = ""
    patches: tuple[str, ...] = ()


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The weightiest first."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def redacted(text: str) -> str:
    """``text`` without anybody's home, user name or folders: what is shown of a path is its end."""
    text = text.replace(os.path.expanduser("~"), "~")
    shown = re.sub(r"(?<![\w.~:/])(?:/[^/\s'\",;:()]+)*/(site-packages|dist-packages)/", r"…/\1/", text)
    return re.sub(r"(?<![\w.:/…])~?(?:/[^/\s'\",;:()]+){2,}(/[^/\s'\",;:()]+)", r"…\1", shown)
