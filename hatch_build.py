"""Puts patches/, their Chinese, failures/, cases/, vlmpatch_lab/, compat.toml and what is made of it inside.

For standard builds only: an editable install must not get a copy, for it would go stale. There the package
finds them beside itself.
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
            build_data["force_include"]["docs/zh-CN/patches"] = "vlmpatch/docs/zh-CN/patches"
            build_data["force_include"]["compat.toml"] = "vlmpatch/compat.toml"
            build_data["force_include"]["vlmpatch_lab"] = "vlmpatch/_lab/vlmpatch_lab"
            self._folder = tempfile.TemporaryDirectory()
            for name, content in self._made().items():
                made = Path(self._folder.name, name)
                made.write_bytes(content)
                build_data["force_include"][str(made)] = f"vlmpatch/{name}"
            for record in ("verified", "families", "mixed"):
                build_data["force_include"][f"data/{record}.csv"] = f"vlmpatch/data/{record}.csv"

    def _made(self) -> dict[str, bytes]:
        """By file: the catalog, compiled as ``import vlmpatch`` reads it, and the patches' revisions."""
        sys.path.insert(0, self.root)
        try:
            from vlmpatch.catalog import index, model
            from vlmpatch.catalog.read import read
            from vlmpatch.lockfile import recorded
        finally:
            sys.path.remove(self.root)
        source = Path(self.root, "compat.toml")
        known = read(str(source))
        if known.problems:
            raise ValueError("; ".join(map(str, known.problems)))
        modules = [entry.module for entry in known.entries.values()]
        return {
            "compat.index": index.dumps(source.read_bytes(), known, model.Entry._fields),
            recorded.FILE: recorded.dumps(known.patches, modules).encode(),
        }

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Drop the temporary folder of what was made."""
        if version == "standard":
            self._folder.cleanup()
