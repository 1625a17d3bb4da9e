"""VLMPATCH_LOCK and ``require(lock=…)``: is what is applied here what a lock has?

The look is doctor's: versions, the sources of the targets, the revisions of the patches. It is taken once, by
processes that ask for it and import a target; nothing is said to other ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vlmpatch import __version__
from vlmpatch.catalog.model import Catalog, Status
from vlmpatch.engine.outlook import Outlook, lock_of, outlook
from vlmpatch.lockfile.difference import Difference, compare
from vlmpatch.lockfile.lock import read

SHOWN = 6  # names of a kind


def outlooks(catalog: Catalog, off: Collection[str]) -> dict[str, Outlook]:
    """What is to be expected of every patch.

    Args:
        catalog: what is known.
        off: ids of patches that are not applied whatever the gate says: switched off, failed.
    """
    # By target: a target that several patches look at is read once.
    by_target = sorted(catalog.entries.values(), key=lambda entry: entry.targets)
    found = {entry.id: outlook(entry, catalog, off) for entry in by_target}
    return {id_: found[id_] for id_ in catalog.entries}


def differences(path: str, catalog: Catalog, found: Mapping[str, Outlook]) -> list[Difference]:
    """How this process differs from the lock at ``path``.

    What waits for a module beside a script does not count: it depends on the folder a job is started in.

    Args:
        path: of the lock.
        catalog: what is known.
        found: what is to be expected of every patch.

    Raises:
        Unreadable: there is no such lock.
    """
    lock = read(path)
    here = lock_of(catalog, found, __version__, lock.packages)
    statuses = {id_: each.status for id_, each in found.items()}
    return [each for each in compare(lock, here, reasons(catalog, statuses)) if not each.waits]


def reasons(catalog: Catalog, statuses: Mapping[str, Status]) -> dict[str, str]:
    """By patch, why it applies or does not; of a former id, what has become of it."""
    gone = {old: _became(new) for old, new in catalog.renamed.items()}
    return gone | {id_: status.reason for id_, status in statuses.items()}


def _became(new: str) -> str:
    return f"has become {new!r}"


def sentence(path: str, found: list[Difference]) -> str:
    """All of it in one message; nothing where there is nothing."""
    said = "; ".join(f"{words}: {names}" for words, names in by_kind(found))
    more = f"`python -m vlmpatch lock --diff --file {path}` says why; without --diff it writes it anew"
    return f"what is applied here is not what {path} has: {said}. {more}" if said else ""


def by_kind(found: list[Difference]) -> list[tuple[str, str]]:
    """What a kind of difference is called, and the names of those of that kind."""
    kinds = [(words, [each for each in found if each.kind == kind]) for kind, words in KINDS.items()]
    return [(words, _named(some)) for words, some in kinds if some]


KINDS = {
    "package": "other versions",
    "set": "other patch sets",
    "added": "applied and not in it",
    "removed": "in it and not applied",
    "revised": "changed patches",
    "reshaped": "for code that has changed",
}


def _named(found: list[Difference]) -> str:
    versions = ("package", "set")
    names = [_versions(each) if each.kind in versions else each.name for each in found]
    names = list(dict.fromkeys(names))
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])


def _versions(each: Difference) -> str:
    return f"{each.name} {each.after or 'absent'} for {each.before or 'none'}"
