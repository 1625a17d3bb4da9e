"""Ovis2, whose visual embedding table is an ``nn.Embedding`` that multiplies by its weight."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION, VOCABULARY


def make(folder: Path) -> int:
    import transformers as tf

    config = tf.Ovis2Config(
        vision_config={**VISION, "image_size": 28, "patch_size": 14, "vocab_size": 32},
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_id=IMAGE,
        visual_indicator_token_ids=[IMAGE + 1, IMAGE + 2, IMAGE + 3, IMAGE + 4, IMAGE + 5],
        vocab_size=VOCABULARY,
        hidden_size=64,
    )
    return write(tf.Ovis2ForConditionalGeneration(config), folder, pixels(1, 3, 28, 28), 4)
