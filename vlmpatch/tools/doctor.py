"""``python -m vlmpatch doctor``: what is installed, what would be done here, and why.

Static: the targets' sources are read where they lie, and nothing that is patched is imported. So the
verdict takes a fraction of a second, and "applied" is never said; that word belongs to the process
that trains (``vlmpatch.status()`` there, or VLMPATCH_LOG=info).
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import NamedTuple

from vlmpatch import __version__, code, engine, gate, settings, versions
from vlmpatch.catalog import Catalog, Entry, Problem, State, Status, default_path, read
from vlmpatch.tools import verified

_PACKAGES = ("torch", "transformers", "deepspeed", "peft", "accelerate", "trl", "ms-swift")


class Findings(NamedTuple):
    """All that doctor knows; the text view is made from it alone."""

    packages: dict[str, versions.Found]
    patches: tuple[Status, ...]
    problems: tuple[Problem, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing asks for the user's attention; the exit code says the same."""
        bad = (State.FAILED, State.CONFLICT)
        return not self.problems and not any(status.state in bad for status in self.patches)


def examine(catalog: Catalog | None = None) -> Findings:
    """Look at this environment.

    Args:
        catalog: what is known; the installed ``compat.toml`` when not given.
    """
    catalog = catalog or read(default_path())
    asked = settings.read(os.environ, catalog.entries)
    names = sorted({name for entry in catalog.entries.values() for name in entry.requires} - set(_PACKAGES))
    packages = {
        name: versions.installed(name, catalog.modules.get(name, name)) for name in (*_PACKAGES, *names)
    }
    remarks = [
        Problem(name, found.remark, "Reinstall it if that is not what you meant")
        for name, found in packages.items()
        if found.remark
    ]
    known = {name: found.version for name, found in packages.items()}
    patches = tuple(_with_record(_forecast(e, catalog, asked), e, known) for e in catalog.entries.values())
    problems = (*catalog.problems, *gate.ranges(catalog), *asked.problems, *remarks)
    return Findings(packages, patches, problems)


def _forecast(entry: Entry, catalog: Catalog, asked: settings.Settings) -> Status:
    if entry.id in asked.disable:
        return Status(entry.id, State.OFF, "VLMPATCH_DISABLE names it")
    try:
        verdict = gate.by_version(entry, catalog.modules)
        if not verdict.needed:
            return Status(entry.id, State.NOT_NEEDED, verdict.reason)
        patch_file = engine.load(entry)
        outcomes = [
            _look(entry, patch_file, target, verdict.reason, catalog.modules) for target in entry.targets
        ]
    except Exception as error:
        return Status(entry.id, State.FAILED, f"{type(error).__name__}: {error}")
    return min(outcomes, key=lambda status: engine.WEIGHT.index(status.state))


def _with_record(status: Status, entry: Entry, installed: Mapping[str, str | None]) -> Status:
    if status.state is not State.ARMED:
        return status
    record = verified.sentence(entry, verified.stacks().get(entry.id, []), installed)
    return status._replace(reason=f"{status.reason}; {record}")


def _look(
    entry: Entry, patch_file: object, target: str, installed: str, modules: Mapping[str, str]
) -> Status:
    if "*" in target:
        return Status(entry.id, State.ARMED, f"{installed}; decided when a model's {target} is loaded")
    path = code.locate(target)
    if path is None:
        return Status(entry.id, State.NOT_NEEDED, f"{target} does not exist here")
    try:
        verdict = gate.by_code(patch_file, code.of_file(target, path))
    except code.NoSource as absent:
        return gate.unseen(entry, target, modules, absent)
    except code.Unrecognised as difference:
        return Status(entry.id, State.CONFLICT, f"{difference}; it will stay off")
    if not verdict.needed:
        return Status(entry.id, State.NOT_NEEDED, verdict.reason)
    return Status(entry.id, State.ARMED, f"{installed}; will be applied when {target} is imported")


def text(findings: Findings) -> str:
    """The findings for a terminal or an issue."""
    lines = [f"vlmpatch {__version__} on Python {platform.python_version()} ({sys.platform})", "", "Packages"]
    for name, found in findings.packages.items():
        lines.append(f"  {name:14}{found.version or 'not installed'}")
    lines += ["", "Patches"]
    for status in findings.patches:
        lines.append(f"  {status.state.value:11} {status.id}")
        lines.append(f"              {status.reason}")
    if findings.problems:
        lines += ["", "Problems", *(f"  {problem}" for problem in findings.problems)]
    lines += ["", _summary(findings)]
    return "\n".join(lines)


def _summary(findings: Findings) -> str:
    counts = {state: sum(status.state is state for status in findings.patches) for state in State}
    said = ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)
    return f"{said or 'no patches known'}; {len(findings.problems)} problem(s)"
