"""Qwen3.5, whose text model is the one that Qwen3.5 for texts alone has, under other names."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import LINEAR, MROPE, QWEN3_VISION, QWEN_IDS, TEXT


def make(folder: Path) -> int:
    import transformers as tf

    rope = {**MROPE, "mrope_interleaved": True, "rope_theta": 1e4}
    vision = {name: value for name, value in QWEN3_VISION.items() if name != "deepstack_visual_indexes"}
    text = {**TEXT, **LINEAR, "rope_parameters": rope}
    config = tf.Qwen3_5Config(text_config=text, vision_config=vision, **QWEN_IDS)
    model = tf.Qwen3_5ForConditionalGeneration(config)
    return write(
        model, folder, pixels(16, 3 * 2 * 16 * 16, image_grid_thw=[[1, 4, 4]]), 4, types="mm_token_type_ids"
    )
