"""MiniCPM-V 4.6 as transformers has it: no remote code, one packed call of the vision tower."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    text = {**TEXT, "model_type": "qwen3_5_text", "head_dim": 16, "layer_types": ["full_attention"] * 2}
    config = tf.MiniCPMV4_6Config(
        vision_config={**VISION, "image_size": 128, "patch_size": 16},
        text_config=text,
        insert_layer_id=0,
        image_token_id=IMAGE,
        video_token_id=IMAGE + 1,
    )
    return write(
        tf.MiniCPMV4_6ForConditionalGeneration(config),
        folder,
        pixels(1, 3, 16, 16 * 64, target_sizes=[[8, 8]]),
        4,
    )
