"""Qwen2.5-Omni's thinker, on rows with a sound, with an image, and with both."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels
from tests.families._shared.sizes import IMAGE
from tests.families._shared.sounds import SOUND, Kind, sounds, write_several
from tests.families.qwen2_5_omni import model


def make(folder: Path) -> int:
    heard = Kind(sounds(1, 16, 16, mask="feature_attention_mask", frames=16), 4, SOUND)
    seen = Kind(pixels(16, 3 * 2 * 14 * 14, image_grid_thw=[[1, 4, 4]]), 4, IMAGE)
    return write_several(model(), folder, [heard, seen])
