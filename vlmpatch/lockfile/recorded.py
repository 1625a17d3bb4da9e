"""The revisions of the installed patches, without parsing them where a wheel recorded what they are.

A wheel brings ``revisions.json``: of every file of ``patches/`` its sum, and of every patch its revision and
the files that this is made of. A record is believed while those files are, byte for byte, the ones it was
made from; a file that was changed by hand, and a checkout, which has no record, are parsed instead.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

from vlmpatch.lockfile.revision import PACKAGE, Module, Revisions

FILE = "revisions.json"  # beside the catalog
SCHEMA = 1


def dumps(patches: str, modules: Iterable[str]) -> str:
    """The record of patch ``modules`` below folder ``patches``."""
    revisions, installed = Revisions(patches), Installed(patches)
    made = {
        module: {"revision": revisions.of(module), "files": revisions.files(module)} for module in modules
    }
    files = {file for record in made.values() for file in record["files"]}
    sums = {file: installed.sum(file) for file in sorted(files)}
    return json.dumps({"schema": SCHEMA, "files": sums, "patches": made}, indent=1, sort_keys=True) + "\n"


class Installed:
    """The revisions of the patches below one folder; each file is read once.

    Args:
        patches: the folder, with one package an upstream.
        package: the name under which Python imports it.
    """

    def __init__(self, patches: str, package: Module = PACKAGE) -> None:
        self._patches = patches
        self._record = _read(os.path.join(os.path.dirname(patches), FILE))
        self._parsed = Revisions(patches, package)
        self._sums: dict[str, str] = {}

    def of(self, module: str) -> str:
        """The revision of patch ``module`` (``deepspeed.zero3_uneven_calls``); empty if it cannot be read."""
        try:
            if recorded := self._recorded(module):
                return recorded
        except (OSError, LookupError, TypeError, AttributeError):
            pass  # the record is not whole
        try:
            return self._parsed.of(module)
        except (OSError, SyntaxError, ValueError):
            return ""

    def sum(self, file: str) -> str:
        """The sum of ``file``, a path below the folder, written with ``/``.

        Raises:
            OSError: it cannot be read.
        """
        if file not in self._sums:
            with open(os.path.join(self._patches, *file.split("/")), "rb") as handle:
                self._sums[file] = hashlib.sha256(handle.read()).hexdigest()[:16]
        return self._sums[file]

    def _recorded(self, module: str) -> str:
        found = self._record["patches"].get(module) if self._record else None
        if not found or any(self.sum(file) != self._record["files"].get(file) for file in found["files"]):
            return ""
        return str(found["revision"])


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as handle:
            found = json.load(handle)
        return dict(found) if found["schema"] == SCHEMA else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
