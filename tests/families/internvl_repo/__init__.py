"""Repository code in InternVL's manner: its vision tower calls torch's checkpoint itself."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.own_code import with_own_code
from tests.families._shared.sizes import VISION


def make(folder: Path) -> int:
    return with_own_code(folder, "internvl", "TinyInternVL", VISION, images=1, pieces=4)
