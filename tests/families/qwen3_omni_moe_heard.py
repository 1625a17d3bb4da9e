"""Qwen3-Omni's thinker, on rows with a sound, with an image, and with both."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels
from tests.families._shared.sizes import IMAGE
from tests.families._shared.sounds import SOUND, Kind, sounds, write_several
from tests.families.qwen3_omni_moe import model


def make(folder: Path) -> int:
    heard = Kind(sounds(1, 16, 100, mask="feature_attention_mask", frames=100), 13, SOUND)
    seen = Kind(pixels(16, 3 * 2 * 16 * 16, image_grid_thw=[[1, 4, 4]]), 4, IMAGE)
    return write_several(model(), folder, [heard, seen])
