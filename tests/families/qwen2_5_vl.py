"""Qwen2.5-VL, for whole frameworks too."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.files import (
    QWEN_IMAGE,
    QWEN_PREPROCESSOR,
    QWEN_TEXT,
    QWEN_VISION,
    Kind,
    build,
    qwen_ids,
)

KIND = Kind(
    config="Qwen2_5_VLConfig",
    model="Qwen2_5_VLForConditionalGeneration",
    vision={
        **QWEN_VISION,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "intermediate_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    },
    text=QWEN_TEXT,
    top=qwen_ids,
    preprocessor={**QWEN_PREPROCESSOR, "processor_class": "Qwen2_5_VLProcessor"},
    image=QWEN_IMAGE,
)


def make(folder: Path) -> int:
    return build(KIND, folder)
