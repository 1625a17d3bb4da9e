"""How near the installed versions are to those a patch has been run on.

``data/verified.csv`` is written by the matrix (``make matrix``): a line a patch and a stack on which the
failure was seen without the patch and was gone with it, and the revisions of the patch that did so.
"""

from __future__ import annotations

import csv
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Entry
from vlmpatch.gate.versions import pep440
from vlmpatch.lockfile.recorded import Installed

_ROOT = os.path.dirname(default_path())


class Proof(NamedTuple):
    """Versions on which a patch was seen to work, and in which revisions, where that was recorded."""

    versions: Mapping[str, str]
    revisions: frozenset[str] = frozenset()


Proofs = Sequence[Proof]


@functools.cache
def proofs() -> Mapping[str, Proofs]:
    """What the matrix recorded, by patch id; nothing where the record is not there or broken."""
    try:
        with open(os.path.join(_ROOT, "data", "verified.csv"), encoding="utf-8", newline="") as handle:
            return read(handle)
    except (OSError, ValueError, KeyError, csv.Error):
        return {}


def read(lines: Iterable[str]) -> Mapping[str, Proofs]:
    """The proofs by patch; of each stack the versions that it has."""
    found: dict[str, list[Proof]] = {}
    for line in csv.DictReader(lines, restval="", strict=True):
        patch, revisions = line.pop("patch"), frozenset(line.pop("revisions").split())
        versions = {name: version for name, version in line.items() if version}
        found.setdefault(patch, []).append(Proof(versions, revisions))
    return found


def revision(entry: Entry) -> str:
    """Of the patch as it is installed here; nothing where its file cannot be read."""
    return "" if entry.set else Installed(os.path.join(_ROOT, "patches")).of(entry.module)


def sentence(entry: Entry, proven: Proofs, installed: Mapping[str, str | None], revision: str | None) -> str:
    """What the record says of the installed versions, in words.

    Args:
        entry: the patch.
        proven: what is on record of it.
        installed: versions by distribution; those the patch's gate names are compared.
        revision: of the patch as it is installed; None where nobody asks which one was verified.
    """
    if not proven:
        return "no verified versions on record"
    _, Version = pep440()
    try:
        mine = {name: Version(Version(installed[name] or "").public) for name in entry.requires}
        stacks = [proof.versions for proof in proven]
        known = {name: sorted({Version(seen[name]) for seen in stacks if name in seen}) for name in mine}
    except (ValueError, KeyError):
        return "verified on other versions"
    here = [proof for proof in proven if all(Version(proof.versions.get(n, "0")) == mine[n] for n in mine)]
    if here and (revision is None or any(revision in proof.revisions for proof in here)):
        return "verified on your exact versions"
    if here:
        return "verified on your exact versions (an earlier revision of this patch)"
    for name, versions in known.items():
        if versions and mine[name] > versions[-1]:
            return f"newer than anything verified ({name} {versions[-1]} is the newest)"
        if versions and mine[name] < versions[0]:
            return f"older than anything verified ({name} {versions[0]} is the oldest)"
    for name, versions in known.items():
        if versions and mine[name] not in versions:
            below = max(version for version in versions if version < mine[name])
            above = min(version for version in versions if version > mine[name])
            return f"between two verified versions ({name} {below} and {above})"
    return "verified on each of these versions, not on all of them together"
