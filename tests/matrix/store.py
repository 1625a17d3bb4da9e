"""The matrix's results: kept as data, and thrown away only where they have become stale."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.lab import envs
from tests.lab.envs import Stack
from tests.matrix import rows
from tests.matrix.judge import Outcome
from tests.matrix.rows import Row
from tests.standin.cells import Cell as Script
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Catalog, Entry
from vlmpatch.catalog.read import read
from vlmpatch.tools.revision import Revisions
from vlmpatch_lab.cell import Cell

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "data" / "compat" / "results.json"
PROTOCOL = 1  # raise it when what a row measures changes; every result is then stale
SIDES = ("bare", "patched")


Outcomes = dict[str, dict[str, dict[str, Outcome]]]  # by stack, row and side


class Store:
    """The outcomes on file. Two runs of the matrix may share a file: each writes what it found."""

    def __init__(self, path: Path = RESULTS) -> None:
        self.path = path
        self.outcomes = self._read()
        self._new: dict[tuple[str, str, str], Outcome] = {}

    def get(self, stack: str, row: str, side: str) -> Outcome | None:
        return self.outcomes.get(stack, {}).get(row, {}).get(side)

    def put(self, stack: str, row: str, side: str, found: Outcome) -> None:
        self.outcomes.setdefault(stack, {}).setdefault(row, {})[side] = found
        self._new[stack, row, side] = found

    def save(self, stacks: Iterable[str], known: Iterable[str]) -> None:
        """Add what was put to the file, and drop ``stacks`` and rows that are no longer ``known``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with envs.locked(envs.cache_root() / "results.lock"):
            self.outcomes = self._read()
            for (stack, row, side), found in self._new.items():
                self.outcomes.setdefault(stack, {}).setdefault(row, {})[side] = found
            data = {
                stack: {
                    row: {side: of_row[side].to_json() for side in SIDES if side in of_row}
                    for row, of_row in sorted(of_stack.items())
                    if row in known
                }
                for stack, of_stack in sorted(self.outcomes.items())
                if stack in stacks
            }
            draft = self.path.with_suffix(".tmp")
            draft.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            draft.replace(self.path)

    def _read(self) -> Outcomes:
        data = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        return {
            stack: {
                row: {side: Outcome.from_json(found) for side, found in sides.items()}
                for row, sides in of_stack.items()
            }
            for stack, of_stack in data.items()
        }


def key(stack: Stack, row: Row, side: str) -> str:
    """What a result depends on: the pins, the row, and the patches in reach where any is in force."""
    parts: list[Any] = [PROTOCOL, stack.torch, sorted(stack.packages), sorted(stack.no_deps)]
    parts.append(_fields(row.script or row.cell))
    if row.script:
        parts += [row.patch, patches(stack, script=True)]
    elif side == "patched":
        parts.append(patches(stack))
        parts += [sorted(row.without)] if row.without else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def patches(stack: Stack, *, script: bool = False) -> dict[str, str]:
    """The patches whose version gate is open on ``stack`` and whose target is there.

    Args:
        stack: where.
        script: count MiniCPM-V's own files, and its remote code, among what is there.
    """
    installed = rows.versions(stack)
    known = entries()
    importable = {known.modules.get(name, name).replace("-", "_") for name in installed}
    return {
        entry.id: _digest(entry)
        for entry in known.entries.values()
        if rows.holds(entry.requires, installed)
        and (script or any(target.partition(".")[0] in importable for target in entry.targets))
    }


def entries() -> Catalog:
    return read(default_path())


def _fields(cell: Cell | Script) -> dict[str, Any]:
    default = dataclasses.asdict(type(cell)())
    return {name: value for name, value in dataclasses.asdict(cell).items() if value != default[name]}


def _digest(entry: Entry) -> str:
    declared = f"{sorted(entry.targets)}{sorted(entry.requires.items())}{entry.before or ''}"
    return hashlib.sha256((_revisions().of(entry.module) + declared).encode()).hexdigest()[:12]


@functools.cache
def _revisions() -> Revisions:
    return Revisions(str(ROOT / "patches"))
