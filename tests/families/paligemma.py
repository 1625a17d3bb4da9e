"""PaliGemma: a SigLIP tower, and token types that say where the image is."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    vision = {**VISION, "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14}
    config = tf.PaliGemmaConfig(
        vision_config={**vision, "vision_use_head": False},
        text_config={**TEXT, "model_type": "gemma", "head_dim": 16},
        image_token_index=IMAGE,
        projection_dim=64,
        hidden_size=64,
    )
    return write(
        tf.PaliGemmaForConditionalGeneration(config), folder, pixels(1, 3, 28, 28), 4, types="token_type_ids"
    )
