"""Qwen3-VL with experts, one parameter for all; before transformers 5 a loop calls their activation."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import MROPE, QWEN3_VISION, QWEN_IDS, TEXT


def make(folder: Path) -> int:
    import transformers as tf

    text = {**TEXT, "head_dim": 16, "rope_scaling": {**MROPE, "mrope_interleaved": True}}
    text |= {"num_experts": 8, "num_experts_per_tok": 1, "moe_intermediate_size": 48}
    config = tf.Qwen3VLMoeConfig(text_config=text, vision_config=QWEN3_VISION, **QWEN_IDS)
    model = tf.Qwen3VLMoeForConditionalGeneration(config)
    return write(
        model, folder, pixels(16, 3 * 2 * 16 * 16, image_grid_thw=[[1, 4, 4]]), 4, types="mm_token_type_ids"
    )
