"""Findings as the usual CI services show them: beside the line of a file that they are about."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from vlmpatch import __version__

SEVERITIES = ("error", "warning", "note")


class Annotation(NamedTuple):
    """One remark on a line.

    Attributes:
        severity: one of ``SEVERITIES``.
        file: its path, as the repository has it; empty where it is about none.
        line: the first is 1.
        title: a few words.
        text: the whole of it.
        code: of the rule; the title, if there is none.
    """

    severity: str
    file: str
    line: int
    title: str
    text: str
    code: str = ""


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
        f"::{kinds[each.severity]} {_place(each)}title={_escaped(each.title, ',:')}::{_escaped(each.text)}"
        for each in remarks
    )


def _place(remark: Annotation) -> str:
    return f"file={_escaped(remark.file, ',:')},line={remark.line}," if remark.file else ""


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
            "location": {"path": each.file or ".", "lines": {"begin": each.line}},
        }
        for each in remarks
    ]
    return json.dumps(report, ensure_ascii=False, indent=2)


def _azure(remarks: list[Annotation]) -> str:
    """Logging commands, which Azure Pipelines reads from what a step prints."""
    kinds = {"error": "error", "warning": "warning", "note": "warning"}
    return "\n".join(
        f"##vso[task.logissue type={kinds[each.severity]}{_azure_place(each)}]"
        f"{_azured(f'{each.title}: {each.text}')}"
        for each in remarks
    )


def _azure_place(remark: Annotation) -> str:
    return f";sourcepath={_azured(remark.file)};linenumber={remark.line}" if remark.file else ""


def _azured(text: str) -> str:
    for sign, code in (("%", "%AZP25"), (";", "%3B"), ("\r", "%0D"), ("\n", "%0A"), ("]", "%5D")):
        text = text.replace(sign, code)
    return text


def _uri(path: str) -> str:
    slashed = path.replace(os.sep, "/")
    return re.sub(rb"[^\w./~-]", lambda sign: b"%%%02X" % sign[0][0], slashed.encode()).decode("ascii")


def _plain(remarks: list[Annotation]) -> str:
    """As compilers print them: Jenkins' warnings, reviewdog and editors read these."""
    return "\n".join(
        f"{f'{each.file}:{each.line}:1' if each.file else 'vlmpatch'}: {each.severity}: "
        f"{each.title}: {' '.join(each.text.split())}"
        for each in remarks
    )


def _sarif(remarks: list[Annotation]) -> str:
    """SARIF 2.1.0, which code scanning services and editors take."""
    rules = {each.code or each.title: each.title for each in remarks}
    driver = {
        "name": "vlmpatch",
        "version": __version__,
        "rules": [{"id": id_, "shortDescription": {"text": title}} for id_, title in rules.items()],
    }
    run = {"tool": {"driver": driver}, "results": [_result(each) for each in remarks]}
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, ensure_ascii=False, indent=2)


def _result(remark: Annotation) -> dict[str, Any]:
    made: dict[str, Any] = {
        "ruleId": remark.code or remark.title,
        "level": remark.severity,
        "message": {"text": remark.text},
    }
    if remark.file:
        place = {"artifactLocation": {"uri": _uri(remark.file)}, "region": {"startLine": remark.line}}
        made["locations"] = [{"physicalLocation": place}]
    return made


WHOLE = ("gitlab", "sarif")  # a document, also where there is nothing to remark
FORMS: Mapping[str, Callable[[list[Annotation]], str]] = {
    "github": _github,
    "gitlab": _gitlab,
    "azure": _azure,
    "sarif": _sarif,
    "plain": _plain,
}
