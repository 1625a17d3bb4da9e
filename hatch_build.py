"""Puts patches/, failures/, cases/, compat.toml and its index inside the package, for standard builds only.

An editable install must not get a copy: it would go stale. There the package finds them beside itself.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc,type-arg,unused-ignore]
    """Hatchling's name for it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add them to a wheel; ``version`` is the kind of build: standard or editable."""
        if version == "standard":
            build_data["force_include"]["patches"] = "vlmpatch/patches"
            build_data["force_include"]["failures"] = "vlmpatch/failures"
            build_data["force_include"]["cases"] = "vlmpatch/cases"
            build_data["force_include"]["compat.toml"] = "vlmpatch/compat.toml"
            build_data["force_include"][str(self._index())] = "vlmpatch/compat.index"
            build_data["force_include"]["data/verified.csv"] = "vlmpatch/data/verified.csv"

    def _index(self) -> Path:
        """The catalog, compiled as ``import vlmpatch`` reads it."""
        sys.path.insert(0, self.root)
        try:
            from vlmpatch.catalog import index, model
            from vlmpatch.catalog.read import read
        finally:
            sys.path.remove(self.root)
        source = Path(self.root, "compat.toml")
        known = read(str(source))
        if known.problems:
            raise ValueError("; ".join(map(str, known.problems)))
        self._folder = tempfile.TemporaryDirectory()
        made = Path(self._folder.name, "compat.index")
        made.write_bytes(index.dumps(source.read_bytes(), known, model.Entry._fields))
        return made

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Drop the index's temporary folder."""
        if version == "standard":
            self._folder.cleanup()
