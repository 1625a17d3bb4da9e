"""How a run of ``verify`` ended, and what two of them say of a patch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vlmpatch.tools.cases import Case
from vlmpatch.tools.lab import Cell
from vlmpatch.tools.verify.choice import expected

# torch's own words where a backend lacks a collective: gloo of torch 2.1 has none of those ZeRO needs.
_LACKING = re.compile(r"no support for \w+ in \w+ process")
_NAMED_LOG = re.compile(r"; see rank(\d+)\.log$")
_LONGEST = 160  # characters of an error


class Ending(NamedTuple):
    """What one run did: ``right``, ``error``, ``missing``, ``ranks``, ``difference`` or ``none``."""

    outcome: str
    detail: str = ""
    cost: Mapping[str, Any] = {}
    applied: frozenset[str] = frozenset()
    log: str = ""


class Verdict(NamedTuple):
    """A case's two runs, and what they say of its patch."""

    case: Case
    bare: Ending
    patched: Ending

    @property
    def tried(self) -> bool:
        """False where both ran into one error that is not the patch's: a limit of this machine.

        Where bare ranks do not come as far, it is enough that the limit stopped those with the patch.
        """
        kind, _, pattern = self.case.fails.partition(": ")
        known = kind == "error" and re.search(pattern, self.bare.detail) is not None
        both = (
            self.bare.outcome == self.patched.outcome == "error" and self.bare.detail == self.patched.detail
        )
        lacking = self.patched.outcome == "error" and _LACKING.search(self.patched.detail) is not None
        return not lacking and (known or not both)

    @property
    def sound(self) -> bool:
        """Whether the patch keeps its promise here."""
        said = not (self.case.warns and expected(self.case)) or self.case.warns in self.patched.log
        return said and self.patched.outcome == "right"


def judge(reports: Mapping[str, Any], cell: Cell, tolerance: float) -> Ending:
    """The worst thing a run shows."""
    report = reports.get(cell.id)
    if report is None:
        return Ending("none", str(reports.get("", {}).get("error", "")))
    first = report["ranks"][0]
    states = first.get("patches", {})
    applied = frozenset(name for name, state in states.items() if state == "applied")
    outcome, detail = _worst(report, tolerance)
    return Ending(outcome, detail, first.get("cost", {}), applied, report["log"])


def said_itself(report: Mapping[str, Any], logs: Sequence[str]) -> str | None:
    """The error of a run, with what its rank printed last in place of the name of a log that will be gone."""
    error: str | None = report["error"]
    if error is None or not (named := _NAMED_LOG.search(error)):
        return error
    return f"{error[: named.start()]}: {last_line(logs[int(named[1])])}".removesuffix(": ")


def _worst(report: Mapping[str, Any], tolerance: float) -> tuple[str, str]:
    if not report["ok"]:
        return "error", " ".join((report["error"] or "").split())[:_LONGEST]
    compared = report["gradients"]
    if "difference" not in compared:
        return "none", "the measure itself could not be run"
    if compared["between_ranks"] > tolerance:
        return "ranks", f"{compared['between_ranks']:.1g}"
    if compared["missing"]:
        return "missing", str(len(compared["missing"]))
    if not compared["difference"] <= tolerance:  # also when it is not a number
        return "difference", f"{compared['difference']:.1g}"
    return "right", f"{compared['difference']:.0e}"


def last_line(log: str) -> str:
    """The last line that is not blank."""
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
