"""Where the packages that matter really lie: installed, editable, shadowed, or not in this Python at all."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from vlmpatch.gate import versions
from vlmpatch.gate.source import locate


class Package(NamedTuple):
    """One distribution. ``others`` are further copies, which this Python passes over for the first."""

    name: str
    version: str | None
    folder: str | None
    editable: bool
    others: tuple[str, ...]
    remark: str


def package(distribution: str, module: str) -> Package:
    """Look ``distribution`` up; nothing is imported."""
    found = versions.installed(distribution, module)
    path = locate(module)
    folder = os.path.dirname(path) if path else None
    copies = _copies(module)
    others = tuple(copy for copy in copies if folder is None or not _same(copy, folder))
    remark = found.remark
    if path is None and found.source == "metadata":  # half removed, or not for this Python
        remark = f"metadata says {found.version}, and there is no module {module}"
    return Package(distribution, found.version, folder, _editable(distribution, folder), others, remark)


def _copies(module: str) -> list[str]:
    copies: dict[str, str] = {}
    for entry in sys.path:
        folder = os.path.join(entry or os.getcwd(), module)
        if os.path.isfile(os.path.join(folder, "__init__.py")):
            copies.setdefault(os.path.realpath(folder), folder)
    return list(copies.values())


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _editable(distribution: str, folder: str | None) -> bool:
    from importlib import metadata

    if folder is None or "site-packages" in folder or "dist-packages" in folder:
        return False
    try:
        for dist in metadata.distributions(name=distribution):
            stated = dist.read_text("direct_url.json")
            if stated and json.loads(stated).get("dir_info", {}).get("editable"):
                return True
    except Exception:  # a broken dist-info can fail in any way, and then says nothing
        return False
    return False


def elsewhere(environ: Mapping[str, str]) -> list[str]:
    """Python interpreters near at hand that do have torch."""
    roots = [environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_PREFIX", ""), ".venv", "venv", "env"]
    roots += [os.path.join(os.path.dirname(root), "") for root in [environ.get("CONDA_EXE", "")] if root]
    pythons = [os.path.join(root, "bin", "python") for root in roots if root]
    pythons += [os.path.join(folder, "python3") for folder in environ.get("PATH", "").split(os.pathsep)]
    found: dict[str, str] = {}
    for python in pythons:
        root = os.path.dirname(os.path.dirname(python))
        if os.path.exists(python) and glob.glob(
            os.path.join(root, "lib", "python3*", "site-packages", "torch")
        ):
            found.setdefault(os.path.realpath(root), os.path.abspath(python))
    found.pop(os.path.realpath(sys.prefix), None)
    return list(found.values())
