"""``python -m vlmpatch lock``: write down what is applied on this stack; say what an upgrade changes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from vlmpatch import __version__
from vlmpatch.catalog import environment
from vlmpatch.catalog.model import Catalog, State, Status
from vlmpatch.engine.locked import outlooks, reasons
from vlmpatch.engine.outlook import lock_of
from vlmpatch.gate import versions
from vlmpatch.lockfile import lock as lockfile
from vlmpatch.lockfile.difference import Difference, compare
from vlmpatch.lockfile.lock import Lock, Unreadable
from vlmpatch.support import files
from vlmpatch.tools.view import ci
from vlmpatch.tools.view.ci import Annotation
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page

SCHEMA = 1  # of --json
VIEWS = ("text", "json", "markdown", "annotations")


class Change(NamedTuple):
    """An upgrade, or what else lies between two locks."""

    before: Lock
    after: Lock
    differences: tuple[Difference, ...]


def here(catalog: Catalog, also: Collection[str] = ()) -> tuple[Lock, dict[str, Status]]:
    """What is applied in this environment, and what becomes of every patch in it.

    Args:
        catalog: what is known.
        also: packages whose versions are wanted, whether a patch asks about them or not.
    """
    off = environment.read(os.environ, catalog.entries, catalog.renamed).disable
    found = outlooks(catalog, off)
    return lock_of(catalog, found, __version__, also), {id_: each.status for id_, each in found.items()}


def _without_torch(say: Words) -> None:
    """Warn where nothing can apply, as in another Python than the one that trains."""
    if versions.running("torch", "torch") is None:
        words = "There is no torch in {python}: run this with the Python that trains."
        print(say(words, python=sys.executable), file=sys.stderr)


def lock(catalog: Catalog, say: Words, path: str) -> int:
    """Write the lock of this environment to ``path``.

    Returns:
        0; 1 when a patch that is needed is not available, and so is not in it; 2 when it cannot be written.
    """
    made, statuses = here(catalog)
    _without_torch(say)
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as handle:
            handle.write(lockfile.text(made))
    except OSError as error:
        print(say("{path}: cannot be written ({why})", path=path, why=error.strerror), file=sys.stderr)
        return 2
    print(say("Written: {path} (patches: {count}, vlmpatch {version})", **_counted(made), path=path))
    missing = [each for each in statuses.values() if each.state in (State.FAILED, State.CONFLICT)]
    for status in missing:
        title = say("{id} is needed here and is not available.", id=status.id)
        print(title, say.told(status.reason), file=sys.stderr)
    return 1 if missing else 0


def _counted(made: Lock) -> dict[str, object]:
    return {"count": len(made.patches), "version": made.vlmpatch}


def diff(catalog: Catalog, say: Words, path: str, other: str, view: str, form: str) -> int:
    """Say what differs between the lock at ``path`` and this environment, or the lock at ``other``.

    Args:
        catalog: what is known.
        say: the language.
        path: the lock.
        other: a second lock, a newer one; empty for this environment.
        view: one of ``VIEWS``.
        form: of annotations, one of ``ci.FORMS``.

    Returns:
        0 when nothing does, 1 when something does, 2 when a lock cannot be read.
    """
    if not other:
        _without_torch(say)
    try:
        before = lockfile.read(path)
        after, statuses = (lockfile.read(other), {}) if other else here(catalog, before.packages)
    except Unreadable as error:
        print(f"{error.where}: {say.told(f'{error.what}. {error.remedy}')}", file=sys.stderr)
        return 2
    change = Change(before, after, tuple(compare(before, after, reasons(catalog, statuses))))
    if view == "json":
        print(json.dumps(data(change), ensure_ascii=False, indent=2))
    elif view == "markdown":
        print(markdown(change, catalog, say))
    elif view == "annotations":
        if change.differences or form in ci.WHOLE:
            print(ci.lines(remarks(change, catalog, say, path), form))
    else:
        page(change, catalog, say).show(sys.stdout)
    return 1 if change.differences else 0


def data(change: Change) -> dict[str, Any]:
    """The differences for ``--json``."""
    return {
        "schema": SCHEMA,
        "vlmpatch": {"before": change.before.vlmpatch, "after": change.after.vlmpatch},
        "same": not change.differences,
        "differences": [each._asdict() for each in change.differences],
    }


# Each kind's heading; what stands under it is told by `_line`.
_HEADINGS = {
    "package": "Versions",
    "set": "Patch sets of others",
    "added": "Applied from now on",
    "removed": "No longer applied",
    "revised": "Patches that have changed",
    "reshaped": "Code they patch that has changed and is still recognised",
}


def page(change: Change, catalog: Catalog, say: Words) -> Page:
    """The differences for a person."""
    made = Page()
    made.add(_summary(change, say), "head" if change.differences else "good")
    for kind, rows in _sections(change, catalog, say).items():
        made.add()
        made.add(say(_HEADINGS[kind]), "head")
        for row in rows:
            made.add(f"  {row}")
    return made


def markdown(change: Change, catalog: Catalog, say: Words) -> str:
    """The differences for a commit message or a pull request; the first line is its subject."""
    lines = [_summary(change, say)]
    for kind, rows in _sections(change, catalog, say).items():
        lines += ["", f"{say(_HEADINGS[kind])}:", "", *(f"- {row}" for row in rows)]
    return "\n".join(lines)


def _sections(change: Change, catalog: Catalog, say: Words) -> dict[str, list[str]]:
    return {
        kind: rows
        for kind in _HEADINGS
        if (rows := [_line(each, catalog, say) for each in change.differences if each.kind == kind])
    }


def _summary(change: Change, say: Words) -> str:
    old, new = change.before.vlmpatch, change.after.vlmpatch
    version = f"vlmpatch {old}" if old == new else f"vlmpatch {old} → {new}"
    kinds = [each.kind for each in change.differences]
    if not kinds:
        return say("{version}: the same patches are applied to the same code.", version=version)
    counts: Mapping[str, int] = {kind: kinds.count(kind) for kind in _HEADINGS}
    told = say(
        "patches: {added} added, {removed} removed, {revised} changed; versions: {package} changed",
        **counts,
    )
    return f"{version} · {told}"


def _line(each: Difference, catalog: Catalog, say: Words) -> str:
    if each.kind in ("package", "set"):
        absent = say("not in the lock")
        return f"{each.name} {each.before or absent} → {each.after or absent}"
    if each.kind == "reshaped":
        return f"{each.name}{say.mark(': ')}{each.target}"
    if each.kind == "revised":
        return f"{each.name}{say.mark(': ')}{each.before} → {each.after}"
    entry = catalog.entries.get(each.name)
    if entry is None:
        why = say.told(each.reason) if each.reason else say("this vlmpatch has no such patch")
        return f"{each.name}{say.mark(': ')}{why}"
    if each.kind == "removed":
        return f"{each.name}{say.mark(': ')}{say.told(each.reason)}" if each.reason else each.name
    why = say.bracketed(say.told(each.reason)) if each.reason else ""
    return f"{each.name}{say.mark(': ')}{say.pick((entry.summary, entry.summary_zh))}{why}"


def remarks(change: Change, catalog: Catalog, say: Words, path: str) -> list[Annotation]:
    """The differences as remarks on the lines of the lock that they are about."""
    places = _places(path)
    shown = os.path.relpath(path)
    return [
        Annotation(
            "warning",
            path if shown.startswith("..") else shown,
            places.get((each.kind in ("package", "set"), each.name), 1),
            f"vlmpatch: {say(_HEADINGS[each.kind])}",
            _line(each, catalog, say),
        )
        for each in change.differences
    ]


def _places(path: str) -> dict[tuple[bool, str], int]:
    """The line of each package or set (True) and each patch (False) in a lock that has been read."""
    found: dict[tuple[bool, str], int] = {}
    for number, line in enumerate(files.read(path).splitlines(), 1):
        key, _, value = line.partition(" = ")
        if key == "id":
            found[False, value.strip().strip('"')] = number
        else:
            found.setdefault((True, key), number)
    return found
