"""``python -m vlmpatch retire``: which patches that act here would go with which upgrade."""

from __future__ import annotations

import re
from typing import NamedTuple

from vlmpatch.catalog.model import Catalog, Entry, State
from vlmpatch.gate import versions
from vlmpatch.tools.doctor import examination, verified
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page

SCHEMA = 1  # of --json
_UPPER = re.compile(r"<\s*(\d[\w.]*?)(?:\.dev0)?\s*(?:,|$)")


class Upgrade(NamedTuple):
    """``package`` at ``version`` ends ``patches``; ``installed`` is what is here."""

    package: str
    version: str
    patches: tuple[str, ...]
    installed: str


class Retirement(NamedTuple):
    """What becomes of the patches.

    Attributes:
        upgrades: what ends patches that are needed with what is installed.
        unended: patches needed here that no release ends.
        spare: patches that have nothing to do with what is installed: it has ended the bug, or never had it.
    """

    upgrades: tuple[Upgrade, ...]
    unended: tuple[str, ...]
    spare: tuple[str, ...]


def retirement(catalog: Catalog) -> Retirement:
    """Hold the bounds of every patch that is needed here against what is installed."""
    spare = [
        status.id
        for status in examination.examine(catalog, revisions=False).patches
        if status.state is State.NOT_NEEDED
    ]
    newest = _newest()
    ends: dict[tuple[str, str], list[str]] = {}
    unended = []
    for entry in catalog.entries.values():
        if entry.id in spare:
            continue
        released = [bound for bound in bounds(entry) if _is_release(*bound, newest)]
        for bound in released:
            ends.setdefault(bound, []).append(entry.id)
        if not released:
            unended.append(entry.id)
    return Retirement(tuple(_upgrades(ends, catalog)), tuple(unended), tuple(spare))


def _upgrades(ends: dict[tuple[str, str], list[str]], catalog: Catalog) -> list[Upgrade]:
    found = []
    for (package, version), ids in ends.items():
        here = versions.installed(package, catalog.modules.get(package, package)).version
        found.append(Upgrade(package, version, tuple(ids), here or ""))
    return sorted(found, key=lambda upgrade: (upgrade.package, _order(upgrade.version)))


def bounds(entry: Entry) -> list[tuple[str, str]]:
    """The upper bounds of ``entry``: package and version."""
    found = ((package, _UPPER.search(specifier)) for package, specifier in entry.requires.items())
    return [(package, match[1]) for package, match in found if match]


def _is_release(package: str, version: str, newest: dict[str, str]) -> bool:
    """Whether a bound is a release that fixes the bug, and not how far the patch is known to be needed.

    An open gate ends at a major version that is still to come.
    """
    major = not any(_order(version)[1:])
    return not major or _order(newest.get(package, "0")) >= _order(version)


def _newest() -> dict[str, str]:
    """The newest version of each package that the matrix has seen."""
    newest: dict[str, str] = {}
    for proofs in verified.proofs().values():
        for proof in proofs:
            for package, version in proof.versions.items():
                if _order(version) > _order(newest.get(package, "0")):
                    newest[package] = version
    return newest


def _order(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def page(catalog: Catalog, say: Words) -> Page:
    """What goes with which upgrade, and what stays for lack of a release that fixes it."""
    made = Page()
    found = retirement(catalog)
    if found.upgrades:
        made.add(say("What an upgrade would fix"), "head")
    for upgrade in found.upgrades:
        made.add()
        line = say(
            "{package} {version} fixes {count} of them",
            package=upgrade.package,
            version=upgrade.version,
            count=len(upgrade.patches),
        )
        made.add(line + say.bracketed(say("here: {version}", version=upgrade.installed)), "head")
        for id_ in upgrade.patches:
            made.add(f"  {id_}")
    if found.upgrades and found.unended:
        made.add()
    if found.unended:
        made.add(say("No release fixes these yet"), "head")
    for id_ in found.unended:
        made.add(f"  {id_}")
    if found.upgrades or found.unended:
        made.add()
    sentence = "{count} patches have nothing to do here; `python -m vlmpatch doctor --all` says why of each."
    made.add(say(sentence, count=len(found.spare)), "dim")
    return made


def data(catalog: Catalog) -> dict[str, object]:
    """The same for ``--json``."""
    found = retirement(catalog)
    upgrades = [upgrade._asdict() for upgrade in found.upgrades]
    return {"schema": SCHEMA, "upgrades": upgrades, "unended": found.unended, "spare": found.spare}
