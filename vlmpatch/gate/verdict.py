"""Is the bug present here?  Versions (PEP 440) first, then a look at the code itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from vlmpatch.catalog.model import Catalog, Entry, Problem, State, Status
from vlmpatch.gate import reads, versions
from vlmpatch.gate.source import Code, NoSource


class Verdict(NamedTuple):
    """Whether a patch is called for, and why in words."""

    needed: bool
    reason: str


def by_version(entry: Entry, modules: Mapping[str, str]) -> Verdict:
    """The verdict of the version ranges alone; all of them must hold.

    A version nobody can read does not close the gate: the look at the code is then what decides.

    Args:
        entry: the patch.
        modules: import names of distributions whose name differs, as in ``Catalog.modules``.

    Raises:
        ValueError: a range of the entry is not PEP 440.
    """
    seen = []
    for distribution, specifier in entry.requires.items():
        version = versions.running(distribution, modules.get(distribution, distribution))
        if version is None:
            return Verdict(False, f"{distribution} is not installed")
        try:
            inside = versions.satisfies(version, specifier)
        except ValueError:  # of the range, or of the version
            if faults := _faults(specifier):
                where = f"compat.toml, patch {entry.id!r}, requires.{distribution}"
                raise ValueError(f"{where}: {faults[0].what}") from None
            seen.append(f"{distribution} {version} (not a PEP 440 version, so its code decides)")
            continue
        if not inside:
            return Verdict(False, f"{distribution} {version} is not {specifier}")
        seen.append(f"{distribution} {version}")
    return Verdict(True, ", ".join(seen))


def by_code(entry: Entry, patch: Any, source: Code, modules: Mapping[str, str]) -> Verdict:
    """The verdict of the patch's own look at the target's source.

    Args:
        entry: the patch.
        patch: its file, imported.
        source: its target's.
        modules: as for ``by_version``.

    Raises:
        Unrecognised: the target has a shape the patch does not know, or lacks what the patch reads.
    """
    reason = patch.look(source)
    if reason is None:
        reads.check(entry, source, modules)
        return Verdict(True, f"{source.module} shows the bug")
    return Verdict(False, str(reason))


def unseen(entry: Entry, target: str, modules: Mapping[str, str], absent: NoSource) -> Status:
    """The status of a target without a source to look at.

    Where it belongs to a distribution the gate asked about, that is a conflict. ``trainer`` or ``dataset``
    belong to nobody: a module of that name that comes as byte code is not meant.
    """
    asked = {modules.get(name, name).replace("-", "_") for name in entry.requires}
    if target.partition(".")[0] in asked:
        return Status(entry.id, State.CONFLICT, f"{absent}; nothing was changed")
    return Status(entry.id, State.NOT_NEEDED, f"{absent}, so nothing says that it is the one meant")


class Fault(NamedTuple):
    """What is wrong with a range, and how to write it."""

    what: str
    remedy: str


def ranges(catalog: Catalog) -> list[Problem]:
    """Problems of the catalog's version ranges, which ``catalog`` leaves unread for speed."""
    return [
        Problem(f"{catalog.path_of(entry)}, patch {entry.id!r}, requires.{distribution}", *fault)
        for entry in catalog.entries.values()
        for distribution, specifier in entry.requires.items()
        for fault in _faults(specifier)
    ]


@functools.lru_cache(maxsize=256)
def _faults(specifier: str) -> tuple[Fault, ...]:
    SpecifierSet, Version = versions.pep440()
    try:
        bounds = list(SpecifierSet(specifier))
    except ValueError:
        return (Fault(f"{specifier!r} is not a PEP 440 range", 'Write ">=1,<2.dev0"'),)
    lower = [Version(bound.version) for bound in bounds if bound.operator in (">", ">=")]
    upper = [Version(bound.version) for bound in bounds if bound.operator in ("<", "<=")]
    if lower and upper and max(lower) > min(upper):
        return (Fault(f"no version lies in {specifier!r}", "Put the lower bound first"),)
    return tuple(
        Fault(
            f"the pre-releases of {bound.version} fall on neither side of {bound}", "End the bound in .dev0"
        )
        for bound in bounds
        if bound.operator == "<" and not Version(bound.version).is_prerelease
    )
