"""Repository code in MiniCPM-V-2's manner: its vision tower is timm's, called once an image."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.own_code import with_own_code


def make(folder: Path) -> int:
    vision = {"img_size": 28, "patch_size": 14, "depth": 2, "embed_dim": 32, "num_heads": 4}
    return with_own_code(folder, "timm", "TinyTimm", vision, images=2, pieces=8)
