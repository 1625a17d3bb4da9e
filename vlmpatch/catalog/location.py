"""Where the catalog and the patch files of this installation lie; on the path of ``import vlmpatch``."""

from __future__ import annotations

import os

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def default_path() -> str:
    """``compat.toml`` of this installation: inside the package, or beside it in a checkout."""
    packaged = os.path.join(PACKAGE, "compat.toml")
    return packaged if os.path.exists(packaged) else os.path.join(os.path.dirname(PACKAGE), "compat.toml")


def upstreams(patches: str) -> list[str]:
    """The folders of ``patches`` that hold patches."""
    if not os.path.isdir(patches):
        return []
    return sorted(entry.name for entry in os.scandir(patches) if entry.is_dir() and entry.name[0].isalpha())


def patch_modules(patches: str) -> dict[str, list[str]]:
    """The modules ``upstream.name`` below folder ``patches``, by the id of the patch that they are."""
    found: dict[str, list[str]] = {}
    for upstream in upstreams(patches):
        for name in sorted(os.listdir(os.path.join(patches, upstream))):
            if name.endswith(".py") and not name.startswith("_"):
                found.setdefault(name[:-3].replace("_", "-"), []).append(f"{upstream}.{name[:-3]}")
    return found


def patch_path(patches: str, module: str) -> str:
    """The file of patch module ``module`` (``deepspeed.zero3_uneven_calls``) below folder ``patches``."""
    return os.path.join(patches, *module.split(".")) + ".py"
