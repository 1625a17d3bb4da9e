"""PaddleOCR-VL: squares of a picture of any size, merged two by two."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import MROPE, QWEN_IDS, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    config = tf.PaddleOCRVLConfig(
        text_config={**TEXT, "head_dim": 16, "rope_parameters": {**MROPE, "rope_theta": 1e4}},
        vision_config={**VISION, "image_size": 56, "patch_size": 14},
        **QWEN_IDS,
    )
    model = tf.PaddleOCRVLForConditionalGeneration(config)
    said = {"image_grid_thw": [[1, 4, 4]]}
    return write(model, folder, pixels(16, 3, 14, 14, **said), 4, types="mm_token_type_ids")
