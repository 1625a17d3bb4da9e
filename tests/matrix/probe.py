"""The static look of every patch in one environment, as JSON on standard output; nothing is imported.

Runs with the interpreter of a stack, or any interpreter whose path leads to the sources to look at:
``python -m tests.matrix.probe``.
"""

from __future__ import annotations

import json
from typing import Any

from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Catalog, Entry
from vlmpatch.catalog.read import read
from vlmpatch.engine import apply
from vlmpatch.gate import versions
from vlmpatch.gate.source import Unrecognised, Watched, locate, of_file
from vlmpatch.gate.verdict import by_code, by_version


def probe(catalog: Catalog) -> dict[str, Any]:
    """What the gate says by version, and what the code says whatever the version."""
    names = sorted({name for entry in catalog.entries.values() for name in entry.requires})
    found = {name: versions.installed(name, catalog.modules.get(name, name)).version for name in names}
    return {
        "versions": {name: version for name, version in found.items() if version},
        "patches": {entry.id: _patch(entry, catalog) for entry in catalog.entries.values()},
    }


def _patch(entry: Entry, catalog: Catalog) -> dict[str, Any]:
    ranges = by_version(entry, catalog.modules)
    patch_file = apply.load(entry)
    return {
        "gate": ranges.needed,
        "why": ranges.reason,
        "targets": {target: _target(entry, patch_file, target, catalog) for target in entry.targets},
    }


def _target(entry: Entry, patch_file: Any, target: str, catalog: Catalog) -> dict[str, Any]:
    path = None if "*" in target else locate(target)
    if path is None:
        return {"says": "absent", "reason": f"{target} is not here", "parts": {}}
    source = of_file(target, path)
    watched = Watched(target, path, source.source)
    try:
        verdict = by_code(entry, patch_file, watched, catalog.modules)
    except Unrecognised as difference:
        return {"says": "unrecognised", "reason": str(difference), "parts": watched.asked}
    return {"says": "bug" if verdict.needed else "no bug", "reason": verdict.reason, "parts": watched.asked}


if __name__ == "__main__":
    print(json.dumps(probe(read(default_path()))))
