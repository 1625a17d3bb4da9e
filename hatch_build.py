"""Puts patches/ and compat.toml inside the package, for standard builds only.

An editable install must not get a copy: it would go stale. There the package finds both beside itself.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc,type-arg,unused-ignore]
    """Hatchling's name for it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the two to a wheel; ``version`` is the kind of build: standard or editable."""
        if version == "standard":
            build_data["force_include"]["patches"] = "vlmpatch/patches"
            build_data["force_include"]["compat.toml"] = "vlmpatch/compat.toml"
            build_data["force_include"]["data/compat/verified.json"] = "vlmpatch/data/compat/verified.json"
