"""Which runs ``verify`` makes: cases of the project's own matrix that need no framework and no script."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from vlmpatch.catalog.model import Catalog, Entry
from vlmpatch.gate import versions
from vlmpatch.gate.verdict import by_version
from vlmpatch.tools.cases import Case
from vlmpatch.tools.lab import Cell

KINDS = ("qwen2_vl", "qwen2_5_vl")  # what vlmpatch_lab.models makes
STEPS = 2
NEEDS = {"zero": "deepspeed", "fsdp": "torch", "lora": "peft"}


def is_suitable(case: Case) -> bool:
    """Whether a case of the matrix can run here, with neither a framework nor a script of the user's."""
    plain = case.matrix and case.how == "cell" and not case.framework and not case.cell.trainer
    return plain and bool(case.patch) and case.cell.kind in KINDS and _holds(case.only)


def expected(case: Case) -> bool:
    """Whether the bare run is known to fail with the versions installed here."""
    return _holds(case.where)


def choose(
    entries: Sequence[Entry], catalog: Catalog, suitable: Sequence[Case], *, thorough: bool, device: str
) -> tuple[list[Case], list[tuple[Entry, str]]]:
    """The cases to run, and the patches that none is run for, with the reason (one of ``view``'s)."""
    chosen: list[Case] = []
    without = []
    for entry in entries:
        if not by_version(entry, catalog.modules).needed:
            without.append((entry, "not needed"))
            continue
        own = [case for case in suitable if case.patch == entry.id and _can_run(case.cell)]
        # One that is known to fail here says more than one that is not.
        own.sort(key=lambda case: not expected(case))
        if not own:
            without.append((entry, "no run"))
        chosen += own if thorough else own[:1]
    return [dataclasses.replace(case, cell=prepared(case.cell, device)) for case in chosen], without


def prepared(cell: Cell, device: str) -> Cell:
    """``cell``, held against the same samples in one process, on ``device``."""
    steps = cell.compared or STEPS
    dtype = "float32" if device == "cpu" else "bfloat16"
    return dataclasses.replace(cell, compared=steps, steps=0, device=device, dtype=dtype)


def _can_run(cell: Cell) -> bool:
    said = (cell.engine, cell.tuning)
    needed = {package for word, package in NEEDS.items() if any(part.startswith(word) for part in said)}
    return all(versions.installed(package, package).version for package in needed)


def _holds(ranges: Mapping[str, str]) -> bool:
    return all(_inside(name, specifier) for name, specifier in ranges.items())


def _inside(name: str, specifier: str) -> bool:
    found = versions.installed(name, name.replace("-", "_")).version
    return found is not None and versions.satisfies(found, specifier)
