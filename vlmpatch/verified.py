"""How near the installed versions are to those a patch has been run on.

``compat.toml``'s ``verified`` lists are written by the matrix (``make matrix``): each entry is a stack on
which the failure was seen without the patch and was gone with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from vlmpatch.catalog import Entry


def sentence(entry: Entry, installed: Mapping[str, str | None]) -> str:
    """What the record says of the installed versions, in words.

    Args:
        entry: the patch.
        installed: versions by distribution; those the patch's gate names are compared.
    """
    from packaging.version import InvalidVersion, Version

    if not entry.verified:
        return "no verified versions on record"
    try:
        mine = {name: Version(Version(installed[name] or "").public) for name in entry.requires}
        known = {
            name: sorted({Version(seen[name]) for seen in entry.verified if name in seen}) for name in mine
        }
    except (InvalidVersion, KeyError):
        return "verified on other versions"
    if any(all(Version(seen.get(name, "0")) == mine[name] for name in mine) for seen in entry.verified):
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
