"""Phi-4-multimodal, on rows with an image, with a sound, and with both.

A sound beside an image goes through a projection of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.families._shared.sizes import IMAGE, TEXT, VISION
from tests.families._shared.sounds import SOUND, Kind, write_several

SIDE, PATCH = 56, 14  # of a crop: the whole image is one, and seen once more as the one crop it has
AUDIO = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_blocks": 2,
    "num_attention_heads": 4,
    "ext_pw_out_channel": 32,
    "depthwise_separable_out_channel": 32,
    "nemo_conv_channels": 16,
    "input_size": 16,
    "audio_token_id": SOUND,
}
FRAMES, REDUCED = 64, 8


def make(folder: Path) -> int:
    import transformers as tf

    vision = {**VISION, "image_size": SIDE, "crop_size": SIDE, "patch_size": PATCH, "image_token_id": IMAGE}
    config = tf.Phi4MultimodalConfig(**TEXT, vision_config=vision, audio_config=AUDIO)
    kinds = [Kind(_image, 13, IMAGE), Kind(_sound, FRAMES // REDUCED, SOUND)]
    return write_several(tf.Phi4MultimodalForCausalLM(config), folder, kinds)


def _image() -> dict[str, Any]:
    import torch

    return {
        "image_pixel_values": torch.randn(1, 2, 3, SIDE, SIDE),
        "image_sizes": torch.tensor([[SIDE, SIDE]]),
        "image_attention_mask": torch.ones(1, 2, SIDE // PATCH, SIDE // PATCH),
    }


def _sound() -> dict[str, Any]:
    import torch

    return {
        "audio_input_features": torch.randn(1, FRAMES, AUDIO["input_size"]),
        "audio_embed_sizes": torch.tensor([FRAMES // REDUCED]),
    }
