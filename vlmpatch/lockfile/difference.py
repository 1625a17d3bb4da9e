"""How two locks differ: an upgrade, or an environment that is not the one that was locked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vlmpatch.lockfile.lock import ABSENT, ANY, Lock, Locked

KINDS = ("added", "removed", "revised", "reshaped", "package", "set")


class Difference(NamedTuple):
    """One thing that is not the same.

    Attributes:
        kind: ``added``: it applies now and did not; ``removed``: the other way round; ``revised``: the patch
            has changed; ``reshaped``: its target has, and the patch still knows it; ``package``: a version;
            ``set``: a patch set of others.
        name: the patch's id, or the name of the package or set.
        before: the revision, shape or version before; empty where there was none.
        after: the one after.
        target: of ``reshaped``, the module.
        waits: it acts only where a script brings a module that was not there: two folders may differ in it.
        reason: why, where that is known.
    """

    kind: str
    name: str
    before: str
    after: str
    target: str = ""
    waits: bool = False
    reason: str = ""


def compare(before: Lock, after: Lock, reasons: Mapping[str, str] | None = None) -> list[Difference]:
    """What is otherwise in ``after``; the version of vlmpatch alone is no difference.

    Args:
        before: the lock.
        after: another, or what is found in an environment.
        reasons: by patch, why it applies or does not in ``after``.
    """
    packages = _versions("package", before.packages, after.packages)
    sets = _versions("set", before.sets, after.sets)
    return [*packages, *sets, *_patches(before, after, reasons or {})]


def _versions(kind: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Difference]:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            yield Difference(kind, name, old, new)


def _patches(before: Lock, after: Lock, reasons: Mapping[str, str]) -> Iterator[Difference]:
    for id_ in sorted(before.patches.keys() | after.patches.keys()):
        old, new, why = before.patches.get(id_), after.patches.get(id_), reasons.get(id_, "")
        if old is None and new is not None:
            yield Difference("added", id_, "", new.revision, waits=new.waits, reason=why)
        elif new is None and old is not None:
            yield Difference("removed", id_, old.revision, "", waits=old.waits, reason=why)
        elif old is not None and new is not None:
            yield from _patch(old, new)


def _patch(old: Locked, new: Locked) -> Iterator[Difference]:
    if old.revision != new.revision:
        yield Difference("revised", old.id, old.revision, new.revision)
    for target in sorted(old.shapes.keys() & new.shapes.keys()):
        one, other = old.shapes[target], new.shapes[target]
        if one != other and not {one, other} & {ABSENT, ANY}:
            yield Difference("reshaped", old.id, one, other, target)
