"""Findings as the usual CI services show them: beside the line of a file that they are about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

SEVERITIES = ("error", "warning", "note")


class Annotation(NamedTuple):
    """One remark on a line.

    Attributes:
        severity: one of ``SEVERITIES``.
        file: its path, as the repository has it.
        line: the first is 1.
        title: a few words.
        text: the whole of it.
    """

    severity: str
    file: str
    line: int
    title: str
    text: str


def service(environ: Mapping[str, str]) -> str:
    """The service whose environment this is; ``plain`` where it is none that is known."""
    known = {"GITHUB_ACTIONS": "github", "GITLAB_CI": "gitlab", "TF_BUILD": "azure"}
    return next((name for variable, name in known.items() if environ.get(variable)), "plain")


def lines(remarks: Iterable[Annotation], form: str) -> str:
    """``remarks`` in the form of one service, one of ``FORMS``; without a newline at the end."""
    return FORMS[form](list(remarks))


def _github(remarks: list[Annotation]) -> str:
    """Workflow commands, which GitHub and Gitea read from what a step prints."""
    kinds = {"error": "error", "warning": "warning", "note": "notice"}
    return "\n".join(
        f"::{kinds[each.severity]} file={_escaped(each.file, ',:')},line={each.line},"
        f"title={_escaped(each.title, ',:')}::{_escaped(each.text)}"
        for each in remarks
    )


def _escaped(text: str, more: str = "") -> str:
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def _gitlab(remarks: list[Annotation]) -> str:
    """A code quality report, which a job names under ``artifacts: reports: codequality``."""
    kinds = {"error": "critical", "warning": "major", "note": "info"}
    report = [
        {
            "check_name": each.title,
            "description": each.text,
            "severity": kinds[each.severity],
            "fingerprint": hashlib.sha256(f"{each.file}\0{each.title}\0{each.text}".encode()).hexdigest(),
            "location": {"path": each.file, "lines": {"begin": each.line}},
        }
        for each in remarks
    ]
    return json.dumps(report, ensure_ascii=False, indent=2)


def _azure(remarks: list[Annotation]) -> str:
    """Logging commands, which Azure Pipelines reads from what a step prints."""
    kinds = {"error": "error", "warning": "warning", "note": "warning"}
    return "\n".join(
        f"##vso[task.logissue type={kinds[each.severity]};sourcepath={_azured(each.file)};"
        f"linenumber={each.line}]{_azured(f'{each.title}: {each.text}')}"
        for each in remarks
    )


def _azured(text: str) -> str:
    for sign, code in (("%", "%AZP25"), (";", "%3B"), ("\r", "%0D"), ("\n", "%0A"), ("]", "%5D")):
        text = text.replace(sign, code)
    return text


def _plain(remarks: list[Annotation]) -> str:
    """As compilers print them: Jenkins' warnings, reviewdog and editors read these."""
    return "\n".join(
        f"{each.file}:{each.line}:1: {each.severity}: {each.title}: {' '.join(each.text.split())}"
        for each in remarks
    )


FORMS: Mapping[str, Callable[[list[Annotation]], str]] = {
    "github": _github,
    "gitlab": _gitlab,
    "azure": _azure,
    "plain": _plain,
}
