"""``python -m vlmpatch retire``: which patches would go with which upgrade, from the catalog's own bounds."""

from __future__ import annotations

import re
from typing import NamedTuple

from vlmpatch.catalog.model import Catalog, Entry
from vlmpatch.gate import versions
from vlmpatch.tools.doctor import verified
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page

_UPPER = re.compile(r"<\s*(\d[\w.]*?)(?:\.dev0)?\s*(?:,|$)")


class Upgrade(NamedTuple):
    """``package`` at ``version`` ends ``patches``.

    ``installed`` is what is here, ``done`` whether it has come so far. A version nobody has ``seen`` is how
    far the patches are known to be needed, not a release that mends anything.
    """

    package: str
    version: str
    patches: tuple[str, ...]
    installed: str | None
    done: bool
    seen: bool


def upgrades(catalog: Catalog) -> list[Upgrade]:
    """Every upper bound of the catalog, by package and version."""
    ends: dict[tuple[str, str], list[str]] = {}
    for entry in catalog.entries.values():
        for bound in bounds(entry):
            ends.setdefault(bound, []).append(entry.id)
    newest = _newest()
    found = []
    for (package, version), ids in ends.items():
        here = versions.installed(package, catalog.modules.get(package, package)).version
        seen = _reached(newest.get(package), version) or _reached(here, version)
        found.append(Upgrade(package, version, tuple(ids), here, _reached(here, version), seen))
    return sorted(found, key=lambda upgrade: (not upgrade.seen, upgrade.package, _order(upgrade.version)))


def bounds(entry: Entry) -> list[tuple[str, str]]:
    """The upper bounds of ``entry``: package and version."""
    found = ((package, _UPPER.search(specifier)) for package, specifier in entry.requires.items())
    return [(package, match[1]) for package, match in found if match]


def _newest() -> dict[str, str]:
    newest: dict[str, str] = {}
    for proofs in verified.proofs().values():
        for proof in proofs:
            for package, version in proof.versions.items():
                if _order(version) > _order(newest.get(package, "0")):
                    newest[package] = version
    return newest


def _order(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _reached(here: str | None, version: str) -> bool:
    try:
        return here is not None and versions.satisfies(here, f">={version}.dev0")
    except ValueError:
        return False


def page(catalog: Catalog, say: Words) -> Page:
    """What goes with which upgrade, and what stays for lack of a release that mends it."""
    made = Page()
    found = upgrades(catalog)
    made.add(say("What an upgrade would end"), "head")
    for upgrade in (each for each in found if each.seen):
        made.add()
        line = say(
            "{package} {version} ends {count} of them",
            package=upgrade.package,
            version=upgrade.version,
            count=len(upgrade.patches),
        )
        here = say("not installed here")
        if upgrade.installed:
            here = say("here: {version}", version=upgrade.installed)
        made.add(f"{line} ({here})", "good" if upgrade.done else "head")
        for id_ in upgrade.patches:
            made.add(f"  {id_}")
    made.add()
    made.add(say("No release ends these yet"), "head")
    ending = {id_ for upgrade in found if upgrade.seen for id_ in upgrade.patches}
    for id_ in catalog.entries:
        if id_ not in ending:
            made.add(f"  {id_}")
    return made


def data(catalog: Catalog) -> dict[str, object]:
    """The same for ``--json``."""
    found = upgrades(catalog)
    bounded = {id_ for upgrade in found if upgrade.seen for id_ in upgrade.patches}
    rest = [id_ for id_ in catalog.entries if id_ not in bounded]
    return {"schema": 1, "upgrades": [upgrade._asdict() for upgrade in found], "unbounded": rest}
