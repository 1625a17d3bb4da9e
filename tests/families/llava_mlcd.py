"""LLaVA with MLCD's tower, whose blocks take positions in a list, a part of which is trained."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    config = tf.LlavaConfig(
        vision_config=tf.MLCDVisionConfig(**VISION, image_size=28, patch_size=14),
        text_config=tf.LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    return write(tf.LlavaForConditionalGeneration(config), folder, pixels(1, 3, 28, 28), 4)
