"""LLaVA for whole frameworks; cells have the smaller ``llava``."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.files import QWEN_TOKENS, Kind, build

KIND = Kind(
    config="LlavaConfig",
    model="LlavaForConditionalGeneration",
    vision={
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "projection_dim": 32,
        "image_size": 28,
        "patch_size": 14,
    },
    text={"model_type": "qwen2"},
    top=lambda ids: {
        "image_token_index": ids["<image>"],
        "image_seq_length": 4,
        "vision_feature_layer": -1,
    },
    preprocessor={
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
    },
    image="<image>",
    tokens=(*QWEN_TOKENS, "<image>"),
    processor={
        "processor_class": "LlavaProcessor",
        "patch_size": 14,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
        "image_token": "<image>",
    },
)


def make(folder: Path) -> int:
    return build(KIND, folder)
