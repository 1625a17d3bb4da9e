"""LLaVA-NeXT, tiles of a picture: here the whole of it and one tile, with a newline after each row."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    config = tf.LlavaNextConfig(
        vision_config=tf.CLIPVisionConfig(**VISION, image_size=28, patch_size=14, projection_dim=32),
        text_config=tf.LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=10,  # by which 4.45 tells rows that have a token for each piece
        image_grid_pinpoints=[[28, 28], [28, 56], [56, 28]],
    )
    return write(
        tf.LlavaNextForConditionalGeneration(config),
        folder,
        pixels(1, 2, 3, 28, 28, image_sizes=[[28, 28]]),
        10,
    )
