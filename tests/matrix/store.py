"""The matrix's results: ``data/results/<stack>.csv``, thrown away only where they have become stale."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.lab import envs, table
from tests.lab.envs import Stack
from tests.matrix import rows
from tests.matrix.judge import KINDS, Outcome
from tests.standin.cells import Cell as Script
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Catalog, Entry
from vlmpatch.catalog.read import read
from vlmpatch.lockfile.revision import Revisions
from vlmpatch.tools.cases import Case
from vlmpatch_lab.cell import Cell

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "data" / "results"
PROTOCOL = 1  # raise it when what a row measures changes; every result is then stale
SIDES = ("bare", "patched")
COLUMNS = (
    *("row", "side", "outcome", "detail", "applied", "troubled", "warned"),
    *("revision", "key", "date", "pins"),
)
COMMON = "*"  # in place of a row: the pins of every line that names none of its own

OfStack = dict[str, dict[str, Outcome]]  # by row and side


class Store:
    """The outcomes on file, one file a stack. Two runs may share a file: each adds what it found."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self.outcomes = {path.stem: load(path) for path in sorted(folder.glob("*.csv"))}
        self._new: dict[tuple[str, str, str], Outcome] = {}

    def get(self, stack: str, row: str, side: str) -> Outcome | None:
        return self.outcomes.get(stack, {}).get(row, {}).get(side)

    def put(self, stack: str, row: str, side: str, found: Outcome) -> None:
        self.outcomes.setdefault(stack, {}).setdefault(row, {})[side] = found
        self._new[stack, row, side] = found

    def save(self, stacks: Iterable[str], known: Iterable[str]) -> None:
        """Add what was put to the files, and drop ``stacks`` and rows that are no longer ``known``."""
        stacks, known = set(stacks), set(known)
        with envs.locked(envs.cache_root() / "results.lock"):
            on_file = Store(self.folder).outcomes
            for (stack, row, side), found in self._new.items():
                on_file.setdefault(stack, {}).setdefault(row, {})[side] = found
            for stack in on_file.keys() - stacks:
                (self.folder / f"{stack}.csv").unlink(missing_ok=True)
            self.outcomes = {
                stack: {row: sides for row, sides in of_stack.items() if row in known}
                for stack, of_stack in on_file.items()
                if stack in stacks
            }
            for stack, of_stack in self.outcomes.items():
                dump(self.folder / f"{stack}.csv", of_stack)
            self._new.clear()


def load(path: Path) -> OfStack:
    """The outcomes of one stack.

    Raises:
        table.Broken: the file is not whole, or holds what no run could have written.
    """
    again = f"python -m tests.matrix.run {path.stem}"
    found: OfStack = {}
    common: dict[str, str] = {}
    for number, line in table.read(path, COLUMNS, again):
        if line["row"] == COMMON:
            common = _versions(line["pins"])
            continue
        row, side = line.pop("row"), line.pop("side")
        if wrong := _wrong(side, line["outcome"], twice=side in found.get(row, {})):
            raise table.Broken(path, number, wrong, again)
        versions = _versions(line.pop("pins")) or common
        troubled = tuple(line.pop("troubled").split())
        found.setdefault(row, {})[side] = Outcome(**line, troubled=troubled, versions=versions)
    return found


def dump(path: Path, outcomes: OfStack) -> None:
    """Write them sorted; the pins that most of them have are said once."""
    pins = Counter(_pins(found) for sides in outcomes.values() for found in sides.values())
    common = pins.most_common(1)[0][0] if pins else ""
    lines = [
        (row, side, *_cells(of_row[side], common))
        for row, of_row in sorted(outcomes.items())
        for side in SIDES
        if side in of_row
    ]
    first = dict.fromkeys(COLUMNS, "") | {"row": COMMON, "pins": common}
    table.write(path, COLUMNS, [tuple(first.values()), *lines])


def _cells(found: Outcome, common: str) -> Iterator[str]:
    pins = _pins(found)
    values = vars(found) | {"troubled": " ".join(found.troubled), "pins": "" if pins == common else pins}
    return (values[name] for name in COLUMNS[2:])


def _pins(found: Outcome) -> str:
    return " ".join(f"{name}=={version}" for name, version in found.versions.items())


def _versions(pins: str) -> dict[str, str]:
    return {name: version for name, _, version in (pin.partition("==") for pin in pins.split())}


def _wrong(side: str, outcome: str, *, twice: bool) -> str:
    if side not in SIDES:
        return f"the side {side!r} is none of {', '.join(SIDES)}"
    if outcome not in KINDS:
        return f"the outcome {outcome!r} is none of {', '.join(KINDS)}"
    return "the same row and side a second time" if twice else ""


def key(stack: Stack, row: Case, side: str) -> str:
    """What a result depends on: the pins, the row, and the patches in reach where any is in force."""
    parts: list[Any] = [PROTOCOL, stack.torch, sorted(stack.packages), sorted(stack.no_deps)]
    script = rows.script(row)
    parts.append(_fields(script or row.cell))
    if script:
        parts += [row.patch, patches(stack, script=True)]
    elif side == "patched":
        parts.append(patches(stack))
        parts += [sorted(row.without)] if row.without else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def is_current(stack: Stack, row: Case, bare: Outcome, patched: Outcome) -> bool:
    """Whether a pair is of the row, the pins and the row's patch as they are.

    What became of other patches does not count, but for a script: its bare run has them in force too.
    """
    same_patch = bool(patched.revision) and patched.revision == revision(row)
    if same_patch and row.how != "script" and patched.versions == rows.versions(stack):
        return bare.key == key(stack, row, "bare")
    return all(found.key == key(stack, row, side) for found, side in zip((bare, patched), SIDES, strict=True))


def revision(row: Case) -> str:
    """Of the row's patch, as it is now; nothing for a row without one."""
    entry = entries().entries.get(row.patch)
    return _revisions().of(entry.module) if entry else ""


@functools.cache
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


@functools.cache
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
