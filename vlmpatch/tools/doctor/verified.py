"""How near the installed versions are to those a patch has been run on.

``data/verified.csv`` is written by the matrix (``make matrix``): a line a patch and a stack on which the
failure was seen without the patch and was gone with it.
"""

from __future__ import annotations

import csv
import functools
import os
from collections.abc import Iterable, Mapping, Sequence

from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Entry

Stacks = Sequence[Mapping[str, str]]


@functools.cache
def stacks() -> Mapping[str, Stacks]:
    """What the matrix recorded, by patch id; nothing where the record is not there or broken."""
    root = os.path.dirname(default_path())
    try:
        with open(os.path.join(root, "data", "verified.csv"), encoding="utf-8", newline="") as handle:
            return read(handle)
    except (OSError, ValueError, KeyError, csv.Error):
        return {}


def read(lines: Iterable[str]) -> Mapping[str, Stacks]:
    """The stacks by patch; of each the versions that it has."""
    found: dict[str, list[Mapping[str, str]]] = {}
    for line in csv.DictReader(lines, restval="", strict=True):
        patch = line.pop("patch")
        found.setdefault(patch, []).append({name: version for name, version in line.items() if version})
    return found


def sentence(entry: Entry, verified: Stacks, installed: Mapping[str, str | None]) -> str:
    """What the record says of the installed versions, in words.

    Args:
        entry: the patch.
        verified: its stacks on record.
        installed: versions by distribution; those the patch's gate names are compared.
    """
    from packaging.version import InvalidVersion, Version

    if not verified:
        return "no verified versions on record"
    try:
        mine = {name: Version(Version(installed[name] or "").public) for name in entry.requires}
        known = {name: sorted({Version(seen[name]) for seen in verified if name in seen}) for name in mine}
    except (InvalidVersion, KeyError):
        return "verified on other versions"
    if any(all(Version(seen.get(name, "0")) == mine[name] for name in mine) for seen in verified):
        return "verified on your exact versions"
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
