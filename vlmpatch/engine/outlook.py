"""What is to be expected of a patch in this environment: sources are read, no target is imported.

``doctor`` shows it, a lock records it. The words are of what will be; "applied" belongs to the process that
trains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from vlmpatch.api import Unrecognised
from vlmpatch.catalog.model import WEIGHT, Catalog, Entry, State, Status
from vlmpatch.engine.apply import load
from vlmpatch.engine.switches import BY_ENVIRONMENT
from vlmpatch.gate import versions
from vlmpatch.gate.source import NoSource, Watched, locate, of_file
from vlmpatch.gate.verdict import by_code, by_version, unseen
from vlmpatch.lockfile.lock import ABSENT, ANY, Lock, Locked
from vlmpatch.lockfile.recorded import Installed

NOT_HERE = ", a module that is not here"  # the file of a script beside which nobody stands


class Outlook(NamedTuple):
    """What will become of a patch, and of each of its targets the shape that the patch looks at."""

    status: Status
    shapes: Mapping[str, str]

    @property
    def acts(self) -> bool:
        """Whether it will be applied when its target is imported, as far as can be seen."""
        return self.status.state is State.ARMED


def outlook(entry: Entry, catalog: Catalog, off: Collection[str]) -> Outlook:
    """Ask the gate of ``entry`` about the sources where they lie.

    Args:
        entry: the patch.
        catalog: what it is from.
        off: the ids that VLMPATCH_DISABLE names.
    """
    modules = catalog.modules
    if entry.id in off:
        return Outlook(Status(entry.id, State.OFF, BY_ENVIRONMENT), {})
    if reason := catalog.conflicts.get(entry.id):
        return Outlook(Status(entry.id, State.CONFLICT, f"{reason}; it will stay off"), {})
    try:
        verdict = by_version(entry, modules)
        if not verdict.needed:
            return Outlook(Status(entry.id, State.NOT_NEEDED, verdict.reason), {})
        patch_file = load(entry)
        looked = [_look(entry, patch_file, target, verdict.reason, modules) for target in entry.targets]
    except Exception as error:
        return Outlook(Status(entry.id, State.FAILED, f"{type(error).__name__}: {error}"), {})
    status = min((each for each, _ in looked), key=lambda each: (WEIGHT.index(each.state), waits(each)))
    return Outlook(status, {target: shape for target, (_, shape) in zip(entry.targets, looked, strict=True)})


def waits(status: Status) -> bool:
    """Whether the patch acts only where a script brings a module that cannot be imported from here."""
    return status.state is State.ARMED and status.reason.endswith(NOT_HERE)


def _look(
    entry: Entry, patch_file: object, target: str, installed: str, modules: Mapping[str, str]
) -> tuple[Status, str]:
    if "*" in target:
        reason = f"{installed}; decided when a model's {target} is loaded"
        return Status(entry.id, State.ARMED, reason), ANY
    path = locate(target)
    if path is None:
        reason = f"{installed}; waits for the import of {target}{NOT_HERE}"
        return Status(entry.id, State.ARMED, reason), ABSENT
    try:
        source = Watched(target, path, of_file(target, path).source)
        verdict = by_code(entry, patch_file, source, modules)
    except NoSource as absent:
        return unseen(entry, target, modules, absent), ABSENT
    except Unrecognised as difference:
        return Status(entry.id, State.CONFLICT, f"{difference}; it will stay off"), source.shape
    if not verdict.needed:
        return Status(entry.id, State.NOT_NEEDED, verdict.reason), source.shape
    reason = f"{installed}; will be applied when {target} is imported"
    return Status(entry.id, State.ARMED, reason), source.shape


def lock_of(
    catalog: Catalog, outlooks: Mapping[str, Outlook], vlmpatch: str, also: Collection[str] = ()
) -> Lock:
    """What will be applied here, as a lock.

    Args:
        catalog: what is known.
        outlooks: of every patch.
        vlmpatch: its version.
        also: packages whose versions are wanted too, for those of another lock.
    """
    acting = [entry for entry in catalog.entries.values() if outlooks[entry.id].acts]
    installed = {
        (entry.set, entry.package): Installed(catalog.patches_of(entry), tuple(entry.package.split(".")))
        for entry in acting
    }
    locked = {
        entry.id: Locked(
            entry.id, installed[entry.set, entry.package].of(entry.module), dict(outlooks[entry.id].shapes)
        )
        for entry in acting
    }
    sets = {name: f"{each.distribution} {each.version}" for name, each in catalog.sets.items()}
    return Lock(vlmpatch, dict(_packages(acting, also, catalog.modules)), locked, sets)


def _packages(
    acting: list[Entry], also: Collection[str], modules: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """The versions that the gates of ``acting`` ask about; of a version, what its builds have in common."""
    for name in sorted({*also, *(name for entry in acting for name in entry.requires)}):
        if version := versions.running(name, modules.get(name, name)):
            yield name, version.partition("+")[0]
