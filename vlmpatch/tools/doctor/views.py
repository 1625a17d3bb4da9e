"""The views of doctor's findings: a page, data, Markdown, one line."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Sequence
from typing import Any

from vlmpatch import __version__
from vlmpatch.catalog.model import State, Status
from vlmpatch.engine.outlook import NOT_HERE
from vlmpatch.tools.doctor import engines, models
from vlmpatch.tools.doctor.engines import Choice
from vlmpatch.tools.doctor.examination import Findings
from vlmpatch.tools.doctor.packages import Package
from vlmpatch.tools.findings import redacted
from vlmpatch.tools.lint import understood
from vlmpatch.tools.lint.model import Model
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page

SCHEMA = 1  # of --json


def page(findings: Findings, say: Words, everything: bool = False) -> Page:
    """The findings for a person: what matters first, what needs nothing last and folded."""
    made = Page()
    acting, waiting = findings.acting, findings.waiting
    idle = [status for status in findings.patches if status.state in (State.NOT_NEEDED, State.OFF)]
    made.add(_summary(findings, say), "good" if findings.sound else "bad")
    for finding in findings.findings:
        made.add()
        style = {"error": "bad", "warning": "warn"}.get(finding.severity, "head")
        made.add(f"{finding.code} {say(finding.severity)}{say.mark(': ')}{finding.title}", style)
        if finding.evidence:
            made.add(finding.evidence, label="  " + say("Seen"))
        if finding.fix:
            made.code(finding.fix, "  " + say("Do this"))
        if finding.link:
            made.code(finding.link, "  " + say("More"))
    for seen in findings.launches or ():
        made.add()
        made.add(say("Understood of the training in {where}", where=seen.where), "head")
        for label, text in understood.rows(seen, say):
            made.add(text, label=f"  {label}")
    if findings.model:
        made.add()
        made.add(say("The model"), "head")
        for label, text in findings.model.rows:
            made.add(text, label=f"  {label}")
        _compared(made, findings.engines, findings.model.model, say)
    made.add()
    made.add(say("Packages, in {folder}", folder=_library()), "head")
    for name, found in findings.packages.items():
        if found.version is not None or name in ("torch", "transformers"):
            made.add(_where(found, say), "" if found.version else "warn", f"  {name}")
    if findings.sets:
        made.add()
        made.add(say("Patch sets of others, whose code is not vlmpatch's"), "head")
        for each in findings.sets:
            made.add(
                f"{each.distribution} {each.version}, {os.path.dirname(each.path)}", label=f"  {each.name}"
            )
    if findings.environment:
        made.add()
        made.add(say("Launch environment"), "head")
        for name, value in findings.environment.items():
            made.add(value[:120], label=f"  {name}")
    if everything and acting:
        made.add()
        made.add(say("Patches that will act here"), "head")
        for status in acting:
            made.add(f"  {status.id}{say.mark(': ')}{say.told(status.reason)}")
    elif acting:
        _grouped(made, findings, say)
    if waiting:
        made.add()
        waits_for = "Patches that wait for a module beside a script; vlmpatch.status() counts them too"
        made.add(say(waits_for), "head")
        for module, ids in _by_module(waiting).items():
            made.add(say.listed(ids), "dim", f"  {module}")
    made.add()
    if everything:
        made.add(say("Patches that have nothing to do here"), "head")
        for status in idle:
            made.add(f"  {status.id}{say.mark(': ')}{say.told(status.reason)}", "dim")
    elif idle:
        made.add(say("{count} patches have nothing to do here; --all lists them.", count=len(idle)), "dim")
    return made


def _by_module(waiting: Sequence[Status]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for status in waiting:
        module = status.reason.removesuffix(NOT_HERE).rpartition(" ")[2]
        found.setdefault(module, []).append(status.id)
    return found


def _compared(made: Page, choices: Sequence[Choice], model: Model, say: Words) -> None:
    tuning = ""
    for choice in choices:
        if choice.tuning != tuning:
            made.add()
            made.add(say(_TUNINGS[choice.tuning]), "head")
        tuning = choice.tuning
        label, text = engines.row(choice, model, say)
        made.add(text, label=f"  {label}")
    made.add(say("What a code means: python -m vlmpatch explain L16"), "dim")


_TUNINGS = {
    "lora": "Engines for LoRA with checkpointing (states: AdamW, bf16, without the adapters)",
    "full": "Engines for full tuning with checkpointing (states: AdamW, bf16)",
}
_HEADS = {
    "launch": "Patches that fix what goes wrong with what was asked about",
    "here": "Patches that will act here, by what they fix",
    "elsewhere": "Patches that act only with another engine, or with another model's own code",
}


def _grouped(made: Page, findings: Findings, say: Words) -> None:
    place = ""
    for group in findings.groups:
        if group.place != place:
            made.add()
            made.add(say(_HEADS[group.place]), "head")
        place = group.place
        title = say.pick(group.title)
        text = title + (say.mark(": ") if title else "") + say.listed(group.ids)
        made.add(text, "dim" if place == "elsewhere" else "", f"  {group.failure}")
    made.add()
    counts = Counter(_record(status) for status in findings.acting)
    shares = [say(words, count=counts[words]) for words in _RECORDS if counts[words]]
    made.add(f"{say.mark(', ').join(shares)}{say.mark('; ')}{say('--all says which.')}", "dim")


_RECORDS = (
    "{count} verified on your exact versions",
    "{count} verified on other versions",
    "{count} not verified on any recorded version",
)


def _record(status: Status) -> str:
    said = status.reason.rpartition("; ")[2]
    if said.startswith("no verified"):
        return _RECORDS[2]
    return _RECORDS[0] if said.startswith("verified on your exact versions") else _RECORDS[1]


def _where(found: Package, say: Words) -> str:
    if found.version is None:
        return say("not installed")
    marks = [say("editable")] if found.editable else []
    usual = os.path.dirname(found.folder or "") == _library()
    return " ".join([found.version, *marks, *([] if usual else [found.folder or ""])]).rstrip()


def _library() -> str:
    return sysconfig.get_path("purelib")


def _summary(findings: Findings, say: Words) -> str:
    acting, waiting = len(findings.acting), len(findings.waiting)
    kinds = [finding.severity for finding in findings.findings]
    counts = {
        "acting": acting,
        "waiting": waiting,
        "errors": kinds.count("error"),
        "warnings": kinds.count("warning"),
    }
    counted = say("{acting} patches will act; {errors} error(s), {warnings} warning(s)", **counts)
    if waiting:
        counted = say(
            "{acting} patches will act, {waiting} wait for a module that is not here; "
            "{errors} error(s), {warnings} warning(s)",
            **counts,
        )
    unseen_ = say("; no training was recognised in the command, so nothing is said of it")
    missed = unseen_ if findings.launches == () else ""
    return f"vlmpatch {__version__}, Python {platform.python_version()}{say.mark(': ')}{counted}{missed}"


def data(findings: Findings) -> dict[str, Any]:
    """The findings for ``--json``."""
    return {
        "schema": SCHEMA,
        "vlmpatch": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "sound": findings.sound,
        "findings": [finding._asdict() for finding in findings.findings],
        "packages": {name: found._asdict() for name, found in findings.packages.items()},
        "patches": [
            {"id": status.id, "state": status.state.value, "reason": status.reason}
            for status in findings.patches
        ],
        "sets": [each._asdict() for each in findings.sets],
        "environment": findings.environment,
        "launches": None if findings.launches is None else [each._asdict() for each in findings.launches],
        "model": models.data(findings.model) if findings.model else None,
        "engines": [engines.data(each) for each in findings.engines],
    }


def markdown(findings: Findings, say: Words) -> str:
    """The findings for an issue; what is shown of a path is its end."""
    lines = ["### vlmpatch doctor", ""]
    lines += [_summary(findings, say), ""]
    for finding in findings.findings:
        lines.append(f"- **{finding.code} {say(finding.severity)}** {_plain(finding.title)}")
        lines += [f"  - {_code(row)}" for row in (finding.evidence, *finding.fix.splitlines()) if row]
    for seen in findings.launches or ():
        lines += ["", say("Understood of the training in {where}", where=_code(seen.where)), ""]
        lines += [f"- {label}{say.mark(': ')}{_code(text)}" for label, text in understood.rows(seen, say)]
    lines += ["", f"| {say('package')} | {say('version')} | {say('where')} |", "|---|---|---|"]
    lines += [
        f"| {name} | {_plain(found.version)} | {_plain(found.folder or '')} |"
        for name, found in findings.packages.items()
        if found.version
    ]
    lines += [
        f"| {say('patch set')} {each.name} | {each.distribution} {each.version} | |" for each in findings.sets
    ]
    lines += ["", f"<details><summary>{say('patches')}</summary>", ""]
    for status in findings.patches:
        lines.append(
            f"- `{status.id}` {say(status.state.value)}{say.mark(': ')}{_plain(say.told(status.reason))}"
        )
    return redacted("\n".join([*lines, "", "</details>"]))


def _plain(text: str) -> str:
    """``text`` in one line, of which Markdown takes nothing for its own."""
    return re.sub(r"([\\`*<>|\[\]&~]|\b_|_\b)", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """``text`` as code in one line, which backticks in it do not end."""
    text = " ".join(text.split())
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{text}{space}{fence}"


def digest(findings: Findings) -> str:
    """One line that is equal on nodes that would train alike."""
    versions = [f"{name}={found.version}" for name, found in findings.packages.items() if found.version]
    versions += [f"{each.name}={each.version}" for each in findings.sets]
    parts = [f"vlmpatch={__version__}", f"python={platform.python_version()}", *versions]
    states = [f"{status.id}={status.state.value}" for status in findings.patches]
    sum_ = hashlib.sha256("\n".join([*parts, *states]).encode()).hexdigest()[:12]
    return f"{sum_} {' '.join(parts)}"
