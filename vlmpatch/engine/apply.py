"""One patch and one target: is the bug there, and is it undone?"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from types import ModuleType

from vlmpatch.api import Patch
from vlmpatch.catalog.model import Entry, State, Status
from vlmpatch.gate.source import NoSource, Unrecognised, of_module
from vlmpatch.gate.verdict import by_code, by_version, unseen
from vlmpatch.journal.journal import AlreadyPatched, Foreign, Taken


def load(entry: Entry) -> ModuleType:
    """The patch file of ``entry``, imported."""
    return importlib.import_module(f"{entry.package}.{entry.module}")


def attempt(entry: Entry, module: ModuleType, patch: Patch, modules: Mapping[str, str]) -> Status:
    """Ask the gate, and apply ``entry`` to ``module``; what a patch file raises goes through.

    Args:
        entry: the patch.
        module: its target, which has run.
        patch: what its file may change things with; ``settled`` is False while it does.
        modules: import names of distributions, as in ``Catalog.modules``.
    """
    verdict = by_version(entry, modules)
    if not verdict.needed:
        return Status(entry.id, State.NOT_NEEDED, verdict.reason)
    patch_file = load(entry)
    try:
        looked = by_code(entry, patch_file, of_module(module), modules)
        if not looked.needed:
            return Status(entry.id, State.NOT_NEEDED, looked.reason)
        patch.settled = False
        patch_file.apply(patch, module)
        patch.settled = True
    except NoSource as absent:
        return unseen(entry, module.__name__, modules, absent)
    except Unrecognised as difference:
        return Status(entry.id, State.CONFLICT, f"{difference}; nothing was changed")
    except (AlreadyPatched, Foreign, Taken) as neighbour:
        return Status(entry.id, State.CONFLICT, f"{neighbour}; nothing was changed")
    return Status(entry.id, State.APPLIED, f"{verdict.reason}: {'; '.join(patch.changes())}")


def forecast(entry: Entry, target: str, seen: Collection[str], modules: Mapping[str, str]) -> Status:
    """What is to be expected of ``target``, which has not run.

    Args:
        entry: the patch.
        target: a name, or a pattern.
        seen: the modules that have run; one of them may be what the pattern stands for.
        modules: as for ``attempt``.
    """
    if "*" in target and any(fnmatchcase(name, target) for name in seen):
        return Status(entry.id, State.NOT_NEEDED, f"modules of {target} have been seen")
    try:
        verdict = by_version(entry, modules)
    except Exception as error:  # a broken range, a broken installation of what reads it
        return Status(entry.id, State.FAILED, str(error))
    if not verdict.needed:
        return Status(entry.id, State.NOT_NEEDED, verdict.reason)
    return Status(entry.id, State.ARMED, f"{verdict.reason}; waits for the import of {target}")
