"""The JSON Schemas of what the tools print with ``--json``; they lie in ``vlmpatch/schemas/``."""

from __future__ import annotations

from pathlib import Path

import vlmpatch

NAMES = ("doctor", "explain", "list", "lock", "retire", "verify")


def text(name: str) -> str:
    """The schema of ``python -m vlmpatch NAME --json``."""
    return Path(vlmpatch.__file__).with_name("schemas").joinpath(f"{name}.schema.json").read_text("utf-8")
