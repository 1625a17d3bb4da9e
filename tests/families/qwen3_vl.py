"""Qwen3-VL, whose vision tower has no input embeddings that a hook could sit on."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import MROPE, QWEN3_VISION, QWEN_IDS, TEXT


def make(folder: Path) -> int:
    import transformers as tf

    text = {**TEXT, "head_dim": 16, "rope_scaling": {**MROPE, "mrope_interleaved": True}}
    config = tf.Qwen3VLConfig(text_config=text, vision_config=QWEN3_VISION, **QWEN_IDS)
    model = tf.Qwen3VLForConditionalGeneration(config)
    return write(
        model, folder, pixels(16, 3 * 2 * 16 * 16, image_grid_thw=[[1, 4, 4]]), 4, types="mm_token_type_ids"
    )
