"""Gemma 3: a SigLIP tower pooled to a few tokens, and token types that say where the image is."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    text = {**TEXT, "head_dim": 16, "sliding_window": 16, "layer_types": ["full_attention"] * 2}
    config = tf.Gemma3Config(
        text_config=text,
        vision_config={**VISION, "image_size": 56, "patch_size": 14, "vision_use_head": False},
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=IMAGE + 1,
        eoi_token_index=IMAGE + 2,
    )
    return write(
        tf.Gemma3ForConditionalGeneration(config), folder, pixels(1, 3, 56, 56), 4, types="token_type_ids"
    )
