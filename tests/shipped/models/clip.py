"""A vision tower of more patches than VideoChat-Flash merges an image into; it is known by its folder."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.families._shared.sizes import VISION

SIDE, PATCH = 140, 14


def main(made: Path, folder: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    tower = folder / "clip-vit-tiny"
    config = transformers.CLIPVisionConfig(**VISION, image_size=SIDE, patch_size=PATCH)
    transformers.CLIPVisionModel(config).save_pretrained(tower)
    sides = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    transformers.CLIPImageProcessor(**sides).save_pretrained(tower)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
