"""Aria, whose projector has its queries by the pieces of a picture."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared import small


def make(folder: Path) -> int:
    return small.make("aria", folder, top={"projector_patch_to_query_dict": {16: 4}})
