"""Are the installed files those of the wheel?

A wheel's RECORD has a digest of every file it holds. What lies in the package's folder is compared with it:
a file that was changed, is missing, or was put there by another program. Byte code that Python writes itself
is not recorded, and not looked at.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from typing import NamedTuple

from vlmpatch.catalog.location import PACKAGE

_TOP = "vlmpatch"


class Comparison(NamedTuple):
    """``record`` is None where there is none: a checkout, an editable install, a copied folder."""

    record: str | None
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether every file is the wheel's, as far as there is a record."""
        return not (self.changed or self.missing or self.foreign)

    def sentence(self) -> str:
        """All of it for a person."""
        if self.record is None:
            return "not installed from a wheel, so there is no record to compare the files with"
        said = [
            f"{words}: {', '.join(names)}"
            for words, names in (
                ("changed since they were installed", self.changed),
                ("missing", self.missing),
                ("not from the wheel", self.foreign),
            )
            if names
        ]
        return "; ".join(said) or "every file is as the wheel's record has it"


def compare(package: str = PACKAGE) -> Comparison:
    """Compare the files of an installed vlmpatch with its record.

    Args:
        package: the folder of the package ``vlmpatch``.
    """
    site = os.path.dirname(package)
    record = _record(site)
    if record is None:
        return Comparison(None)
    digests = _digests(record)
    present = set(_files(site))
    changed = sorted(name for name in present & digests.keys() if _digest(site, name) != digests[name])
    missing, foreign = sorted(digests.keys() - present), sorted(present - digests.keys())
    return Comparison(record, tuple(changed), tuple(missing), tuple(foreign))


def _record(site: str) -> str | None:
    names = sorted(name for name in os.listdir(site) if name.startswith("vlmpatch-"))
    paths = [os.path.join(site, name, "RECORD") for name in names if name.endswith(".dist-info")]
    editable = any(name.startswith(("_editable_impl_vlmpatch", "__editable__.vlmpatch")) for name in names)
    return None if editable else next((path for path in paths if os.path.isfile(path)), None)


def _digests(record: str) -> dict[str, str]:
    with open(record, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == 3]
    return {name: digest for name, digest, _ in rows if name.partition("/")[0] == _TOP and digest}


def _files(site: str) -> list[str]:
    found = []
    for folder, folders, names in os.walk(os.path.join(site, _TOP)):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [os.path.relpath(os.path.join(folder, name), site).replace(os.sep, "/") for name in names]
    return found


def _digest(site: str, name: str) -> str:
    with open(os.path.join(site, *name.split("/")), "rb") as file:
        digest = hashlib.sha256(file.read()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
