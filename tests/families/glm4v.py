"""GLM-4V: patches of two frames with a grid, positions of three axes."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import GLM_IDS, GLM_TEXT, GLM_VISION


def make(folder: Path) -> int:
    import transformers as tf

    config = tf.Glm4vConfig(text_config=GLM_TEXT, vision_config=GLM_VISION, **GLM_IDS)
    model = tf.Glm4vForConditionalGeneration(config)
    return write(
        model, folder, pixels(16, 3 * 2 * 14 * 14, image_grid_thw=[[1, 4, 4]]), 4, types="mm_token_type_ids"
    )
