"""VipLLaVA, which takes two layers of its tower."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared import small


def make(folder: Path) -> int:
    return small.make("vipllava", folder, top={"vision_feature_layers": [-1, -2]})
