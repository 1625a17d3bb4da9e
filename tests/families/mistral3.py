"""Mistral Small 3: Pixtral, whose pictures are of any size, merged two by two."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    config = tf.Mistral3Config(
        vision_config=tf.PixtralVisionConfig(**VISION, head_dim=8, image_size=56, patch_size=14),
        text_config=tf.MistralConfig(**TEXT, head_dim=16),
        image_token_index=IMAGE,
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    model = tf.Mistral3ForConditionalGeneration(config)
    return write(model, folder, pixels(1, 3, 56, 56, image_sizes=[[56, 56]]), 4)
