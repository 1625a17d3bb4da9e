"""GLM-4.5V: images, and DeepSeek-V3's experts."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import DEEPSEEK, GLM_IDS, GLM_TEXT, GLM_VISION


def make(folder: Path) -> int:
    import transformers as tf

    text = {**GLM_TEXT, **DEEPSEEK, "head_dim": 16}
    config = tf.Glm4vMoeConfig(text_config=text, vision_config=GLM_VISION, **GLM_IDS)
    model = tf.Glm4vMoeForConditionalGeneration(config)
    return write(
        model, folder, pixels(16, 3 * 2 * 14 * 14, image_grid_thw=[[1, 4, 4]]), 4, types="mm_token_type_ids"
    )
