"""LLaVA-OneVision: tiles as LLaVA-NeXT has them, a SigLIP tower and Qwen2."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    vision = {**VISION, "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14}
    config = tf.LlavaOnevisionConfig(
        vision_config={**vision, "vision_use_head": False},
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_index=IMAGE,
        video_token_index=IMAGE + 1,
        image_grid_pinpoints=[[28, 28], [28, 56], [56, 28]],
    )
    return write(
        tf.LlavaOnevisionForConditionalGeneration(config),
        folder,
        pixels(1, 2, 3, 28, 28, image_sizes=[[28, 28]]),
        10,
    )
