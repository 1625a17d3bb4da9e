"""Patch sets of others: packages in our form, found by an entry point and switched on by name.

    [project.entry-points."vlmpatch.patch_sets"]
    acme-vl = "acme_vl"

names the package in which ``compat.toml``, ``patches/``, ``failures/`` and ``cases/`` lie. To be installed
switches nothing on, and nothing of it is imported before one of its patches is needed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata

from vlmpatch.catalog import environment
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Catalog, Entry, PatchSet, Problem
from vlmpatch.catalog.read import read

GROUP = "vlmpatch.patch_sets"
_NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
_MODULE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"


def known(environ: Mapping[str, str]) -> Catalog:
    """The installed catalog, with the patch sets that ``environ`` names; never raises."""
    catalog = read(default_path())
    names = environment.sets(environ)
    return add(catalog, names, "VLMPATCH_SETS") if names else catalog


def add(catalog: Catalog, names: Iterable[str], where: str) -> Catalog:
    """``catalog`` and the patch sets ``names``; what is wrong with one is a problem, and the rest stands.

    Args:
        catalog: ours, with those that were added before.
        names: of their entry points.
        where: who names them, for the problems.
    """
    for name in names:
        if name not in catalog.sets:
            catalog = _added(catalog, name, where)
    return catalog


def installed() -> dict[str, list[metadata.EntryPoint]]:
    """The patch sets there are by name, switched on or not; two packages may have one name."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for point in _points():
        if point not in found.setdefault(point.name, []):
            found[point.name].append(point)
    return found


def _points() -> Iterator[metadata.EntryPoint]:
    try:
        yield from metadata.entry_points(group=GROUP)
    except Exception:  # broken metadata of one package can fail in any way: the others are asked alone
        for dist in metadata.distributions():
            with contextlib.suppress(Exception):
                yield from dist.entry_points.select(group=GROUP)


def _added(catalog: Catalog, name: str, where: str) -> Catalog:
    try:
        return _with(catalog, _found(name))
    except _Absent as error:
        what, remedy = map(str, error.args)
    except Exception as error:  # of metadata, of a finder: a job does not end for it
        what, remedy = f"patch set {name!r} cannot be read: {error!r}", "Reinstall the package that brings it"
    return catalog._replace(problems=(*catalog.problems, Problem(where, what, remedy)))


def _with(catalog: Catalog, patch_set: PatchSet) -> Catalog:
    read_ = read(patch_set.path)
    own = _own_failures(patch_set)
    theirs = [_theirs(entry, patch_set, own) for entry in read_.entries.values()]
    return catalog._replace(
        entries={**catalog.entries, **{entry.id: entry for entry in theirs}},
        modules={**read_.modules, **catalog.modules},
        problems=(*catalog.problems, *read_.problems),
        sets={**catalog.sets, patch_set.name: patch_set},
        conflicts={**catalog.conflicts, **_conflicts(read_.entries, catalog, patch_set)},
    )


class _Absent(Exception):
    """What is wrong, and the remedy."""


def _found(name: str) -> PatchSet:
    there = installed()
    if not re.fullmatch(_NAME, name) or name not in there:
        known_ = ", ".join(sorted(there)) or "none"
        remedy = (
            f"{environment.suggestion(name, there)}Install the package that brings it; installed: {known_}"
        )
        raise _Absent(f"there is no patch set {name!r}", remedy)
    points = there[name]
    if len({point.value for point in points}) > 1 or len({_distribution(point) for point in points}) > 1:
        packages = " and ".join(sorted({" ".join(_distribution(point)) for point in points}))
        raise _Absent(f"two packages have a patch set {name!r}: {packages}", "Uninstall one of them")
    path = _path(points[0])
    if path is None:
        what = f"the entry point of patch set {name!r} is {points[0].value!r}, where no compat.toml lies"
        raise _Absent(what, "It names the package that holds compat.toml and patches/, without a colon")
    return PatchSet(name, *_distribution(points[0]), path, f"{points[0].value}.patches")


def _distribution(point: metadata.EntryPoint) -> tuple[str, str]:
    dist = point.dist
    return (dist.metadata["Name"], dist.version) if dist is not None else ("unknown", "0")


def _path(point: metadata.EntryPoint) -> str | None:
    """The set's ``compat.toml``; nothing of its package is run to find it."""
    if not re.fullmatch(_MODULE, point.value):
        return None
    top, *rest = point.value.split(".")
    spec = importlib.util.find_spec(top)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = os.path.join(folder, *rest, "compat.toml")
        if os.path.isfile(path):
            return path
    return None


def _own_failures(patch_set: PatchSet) -> set[str]:
    """The ids of the failures that the set describes itself: ``F01.toml`` is F1."""
    folder = os.path.join(os.path.dirname(patch_set.path), "failures")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {re.sub(r"^F0+(?=\d)", "F", name[:-5]) for name in names if name.endswith(".toml")}


def _theirs(entry: Entry, patch_set: PatchSet, own: set[str]) -> Entry:
    """``entry`` under its whole id; a failure that the set does not describe is one of ours."""
    failures = tuple(f"{patch_set.name}/{each}" if each in own else each for each in entry.failures)
    return entry._replace(
        id=f"{patch_set.name}/{entry.id}",
        failures=failures,
        was=tuple(f"{patch_set.name}/{old}" for old in entry.was),
        set=patch_set.name,
        package=patch_set.package,
    )


def _conflicts(entries: Mapping[str, Entry], catalog: Catalog, patch_set: PatchSet) -> dict[str, str]:
    remedy = "one bug is fixed once: disable vlmpatch's and rename theirs, or drop theirs"
    return {
        f"{patch_set.name}/{id_}": f"both vlmpatch and patch set {patch_set} have a patch {id_}; {remedy}"
        for id_ in entries
        if id_ in catalog.entries
    }
