"""The matrix as data: what runs (``vlmpatch_lab/rows.toml``) and on what (``tests/stacks/``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

import vlmpatch_lab
from tests.lab.envs import Stack
from tests.standin.cells import Cell as Script
from vlmpatch_lab.cell import Cell

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROWS = Path(vlmpatch_lab.__file__).with_name("rows.toml")
Versions = Mapping[str, str]
ZERO_OVER_GLOO = {"torch": ">=2.2"}  # before, gloo had no _allgather_base


@dataclass(frozen=True)
class Row:
    """One failure in one situation.

    ``cell`` is trained by ``vlmpatch_lab.run``, on the stacks that pin ``framework`` or, without one, on
    those without any. ``script`` in its place is a run of MiniCPM-V's fine-tune script
    (``tests.standin.observe``), which a dozen drifts would stop one after the other: its bare run has
    every patch but the row's. ``fails`` is how the bare run fails: ``error: <regex>``, ``missing`` (trainable
    tensors without gradient), ``difference`` (gradients unlike those without checkpointing) or
    ``ranks`` (gradients differ between ranks). It must fail so exactly where the gate of ``patch`` is
    open, or, with ``where``, where those versions are installed: a patch that is harmless where it is
    not needed may have the wider gate. With ``warns`` the failure is the user's own choice: it
    stands with vlmpatch too, and that text must have been printed. ``only`` is where the row can run.
    ``without`` are patches switched off in the run with vlmpatch, for they would hide what ``patch`` mends.
    """

    id: str
    failures: tuple[str, ...]
    en: str
    zh: str
    cell: Cell = field(default_factory=Cell)
    script: Script | None = None
    patch: str = ""
    framework: str = ""
    fails: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, str] = field(default_factory=dict)
    warns: str = ""
    without: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.id)

    def runs_on(self, stack: Stack) -> bool:
        """Whether the stack is a column, has what the row needs, and no framework it does not ask for."""
        installed = versions(stack)
        zero = (self.script or self.cell).engine.startswith("zero")
        able = holds(self.only, installed) and (not zero or holds(ZERO_OVER_GLOO, installed))
        return able and stack.matrix and self.framework == framework(stack)


# The first that a stack pins is what it is for.
FRAMEWORKS = ("pytorch-lightning", "axolotl", "llamafactory", "ms-swift", "trl", "timm")


def read(path: Path = ROWS) -> dict[str, Row]:
    """Every row by its id."""
    known = {f.name for f in fields(Row)}
    rows: dict[str, Row] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["row"]:
        if unknown := entry.keys() - known:
            raise ValueError(f"{path}, row {entry.get('id')!r}: unknown key {min(unknown)}")
        runs: dict[str, Any] = {"cell": Cell(**entry["cell"])} if "cell" in entry else {}
        runs |= {"script": Script.of(entry["script"])} if "script" in entry else {}
        lists = {name: tuple(entry.get(name, ())) for name in ("failures", "without")}
        row = Row(**{**entry, **lists, **runs})
        if row.id in rows or bool(row.patch) != bool(row.fails):
            raise ValueError(f"{path}, row {row.id!r}: twice, or a patch without a failure")
        if len(runs) != 1 or (row.script and not row.patch):
            raise ValueError(f"{path}, row {row.id!r}: a cell, or a script and the patch it does without")
        rows[row.id] = row
    return rows


def versions(stack: Stack) -> dict[str, str]:
    """What the stack pins, by distribution."""
    pins = (pin.partition("==") for pin in (stack.torch, *stack.packages, *stack.no_deps) if "==" in pin)
    return {name.lower().replace("_", "-"): version for name, _, version in pins}


def framework(stack: Stack) -> str:
    """The framework a stack is there for, or nothing."""
    installed = versions(stack)
    return next((name for name in FRAMEWORKS if name in installed), "")


def holds(ranges: Mapping[str, str], installed: Versions) -> bool:
    """Whether every range holds; a package that is not installed lies in none."""
    return all(
        name in installed and SpecifierSet(text).contains(Version(installed[name]), prereleases=True)
        for name, text in ranges.items()
    )
