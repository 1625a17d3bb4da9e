"""Mllama, whose text model looks at images in layers that a batch without images leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def make(folder: Path) -> int:
    import transformers as tf

    vision: dict[str, Any] = {**VISION, "attention_heads": 4, "num_global_layers": 1, "vision_output_dim": 64}
    vision |= {"image_size": 28, "patch_size": 14, "max_num_tiles": 2, "intermediate_layers_indices": [0]}
    vision |= {"supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]}
    text = {**TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1]}
    text |= {"rope_scaling": {"rope_type": "default"}}
    config = tf.MllamaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
    return write(
        tf.MllamaForConditionalGeneration(config),
        folder,
        pixels(1, 1, 2, 3, 28, 28, aspect_ratio_ids=[[2]], aspect_ratio_mask=[[[1, 1]]]),
        1,
    )
