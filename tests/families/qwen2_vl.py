"""Qwen2-VL, for whole frameworks too."""

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
    config="Qwen2VLConfig",
    model="Qwen2VLForConditionalGeneration",
    vision={**QWEN_VISION, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
    text=QWEN_TEXT,
    top=qwen_ids,
    preprocessor={**QWEN_PREPROCESSOR, "processor_class": "Qwen2VLProcessor"},
    image=QWEN_IMAGE,
)


def make(folder: Path) -> int:
    return build(KIND, folder)
