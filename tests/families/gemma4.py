"""Gemma 4, on rows with an image, with a sound, and with both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.families._shared.sizes import IMAGE, TEXT, VISION
from tests.families._shared.sounds import SOUND, Kind, sounds, write_several

SIDE, PATCH = 2, 4


def make(folder: Path) -> int:
    import transformers as tf

    text: dict[str, Any] = {name: value for name, value in TEXT.items() if name != "tie_word_embeddings"}
    text |= {"head_dim": 16, "global_head_dim": 16, "sliding_window": 16, "num_kv_shared_layers": 0}
    text |= {"layer_types": ["sliding_attention", "full_attention"], "vocab_size_per_layer_input": 128}
    text |= {"hidden_size_per_layer_input": 8}
    vision = {**VISION, "num_key_value_heads": 4, "head_dim": 8, "patch_size": PATCH}
    audio: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "output_proj_dims": 32,
    }
    config = tf.Gemma4Config(
        text_config=text,
        vision_config=vision | {"pooling_kernel_size": SIDE, "position_embedding_size": 16},
        audio_config=audio | {"subsampling_conv_channels": [16, 8]},
        image_token_id=IMAGE,
        video_token_id=IMAGE + 1,
        audio_token_id=SOUND,
        tie_word_embeddings=False,
    )
    heard = Kind(sounds(1, 16, 16, mask="input_features_mask", frames=16), 4, SOUND)
    model = tf.Gemma4ForConditionalGeneration(config)
    return write_several(model, folder, [Kind(_image, 4, IMAGE), heard], types="mm_token_type_ids")


def _image() -> dict[str, Any]:
    import torch

    places = torch.cartesian_prod(torch.arange(2 * SIDE), torch.arange(2 * SIDE))
    pixels = torch.rand(1, len(places), 3 * PATCH**2)
    return {"pixel_values": pixels, "image_position_ids": places[None]}
