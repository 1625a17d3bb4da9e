"""InternVL as transformers has it."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    config = tf.InternVLConfig(
        vision_config={**VISION, "image_size": [56, 56], "patch_size": [14, 14]},
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_id=IMAGE,
        image_seq_length=4,
    )
    return write(tf.InternVLForConditionalGeneration(config), folder, pixels(1, 3, 56, 56), 4)
