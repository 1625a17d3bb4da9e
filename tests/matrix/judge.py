"""What a row's two runs say about the gate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.lab.cells import Result
from tests.matrix.rows import Versions, holds
from vlmpatch.catalog.model import Entry
from vlmpatch.tools.cases import Case

TOLERANCE = 1e-5  # relative, float32, every rank
PARAMETERS = 1e-3  # of what compared steps made of them: Adam divides by the gradient's size
PATH = re.compile(r"(?<![\w.:/])/[\w./+-]+")  # what is kept is read on other machines


KINDS = ("right", "error", "missing", "difference", "ranks")


@dataclass(frozen=True)
class Outcome:
    """What one run did, one of ``KINDS``, and where it is kept: on what and when it was measured."""

    outcome: str
    detail: str = ""
    applied: str = ""  # the row's patch, if it was in force at the end
    troubled: tuple[str, ...] = ()  # patches that failed or are in conflict
    warned: str = ""  # what vlmpatch printed of the row's patch
    revision: str = ""  # of the row's patch, if it was measured with one; see ``store.revision``
    key: str = ""
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.outcome} ({self.detail})" if self.detail else self.outcome


def outcome(result: Result, patch: str = "") -> Outcome:
    """The worst thing a cell shows, and what became of ``patch`` in it."""
    applied = patch if result.patches.get(patch) == "applied" else ""
    troubled = tuple(sorted(n for n, state in result.patches.items() if state in ("failed", "conflict")))
    printed = re.findall(rf"vlmpatch \[{re.escape(patch)}\]: .*$", _portable(result.log), re.M)
    found, detail = _worst(result)
    return Outcome(found, detail, applied, troubled, " | ".join(dict.fromkeys(printed)))


def _portable(text: str) -> str:
    return PATH.sub("<path>", text)


def _worst(result: Result) -> tuple[str, str]:
    if not result.ok:
        return "error", _portable(" ".join((result.error or "").split()))[:200]
    difference = 0.0 if result.difference is None and result.measured else result.difference
    if not result.tensors or difference is None or result.between_ranks is None:
        return "error", "no gradient was recorded"
    if result.between_ranks > TOLERANCE:  # not for NaN, which equals nothing on any rank
        return "ranks", f"gradients differ by {result.between_ranks:.2g} between ranks"
    if result.missing:
        return "missing", f"{len(result.missing)} trainable tensors without gradient"
    if not (difference <= TOLERANCE and result.between_ranks <= TOLERANCE):
        return "difference", f"gradients off by {difference:.2g}"
    if result.parameters is not None and not result.parameters <= PARAMETERS:
        return "difference", f"parameters off by {result.parameters:.2g}"
    return "right", ""


def fits(said: str, found: Outcome) -> bool:
    """Whether a run ended as ``said``: a kind, and after a colon a regex for the detail."""
    kind, _, pattern = said.partition(": ")
    return found.outcome == kind and re.search(pattern, found.detail) is not None


def faults(row: Case, entry: Entry | None, installed: Versions, bare: Outcome, patched: Outcome) -> list[str]:
    """Everything in which the two runs contradict the gate; empty when they bear it out."""
    found = [f"{name} failed or is in conflict" for name in patched.troubled]
    needed = _in_force(row, patched)
    should_fail = needed and holds(row.where, installed)
    if row.patch and entry is None:
        return [f"no patch {row.patch} in compat.toml"]
    if should_fail and not fits(row.fails, bare):
        found.append(f"gate: {row.patch} is applied, but the bare run is {bare}")
    if not should_fail and bare.outcome != "right":
        found.append(f"gate: {row.patch or 'no patch'} claims nothing here, but the bare run is {bare}")
    if should_fail and row.warns not in patched.warned:
        found.append(f"the warning was not printed; printed: {patched.warned or 'nothing'}")
    if patched.outcome != "right":
        found.append(f"with vlmpatch the run is {patched}")
    return found


def _in_force(row: Case, patched: Outcome) -> bool:
    return bool(row.patch) and patched.applied == row.patch


def unproven(pairs: Iterable[tuple[Case, Outcome, Outcome]]) -> list[str]:
    """Patches in force on one stack whose rows there all run right without them: a gate too wide.

    Args:
        pairs: the stack's rows, each with its bare and its patched outcome.
    """
    failed: dict[str, bool] = {}
    for row, bare, patched in pairs:
        if _in_force(row, patched):
            failed[row.patch] = failed.get(row.patch, False) or bare.outcome != "right"
    return sorted(name for name, any_failed in failed.items() if not any_failed)
