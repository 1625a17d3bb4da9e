"""Molmo 2: all patches of each crop, of which a token pools those that it is told to."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    heads = {"num_key_value_heads": 4, "head_dim": 8}
    config = tf.Molmo2Config(
        text_config={**TEXT, "head_dim": 16, "additional_vocab_size": 8},
        vision_config={**VISION, **heads, "image_size": [28, 28], "patch_size": 14},
        adapter_config={**VISION, **heads, "text_hidden_size": 64, "vision_feature_layer": [-1]},
        image_patch_id=IMAGE,
    )
    model = tf.Molmo2ForConditionalGeneration(config)
    said = {"image_token_pooling": [[0], [1], [2], [3]], "image_grids": [[2, 2, 0, 0]]}
    return write(model, folder, pixels(1, 4, 3 * 14 * 14, **said), 4, types="mm_token_type_ids")
