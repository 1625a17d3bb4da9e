"""Idefics3 and what was made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.families._shared.batches import write
from tests.families._shared.sizes import IMAGE, TEXT, VISION


def idefics(folder: Path, configuration: Any, model: Any) -> int:
    import torch

    config = configuration(
        vision_config={**VISION, "image_size": 56, "patch_size": 14},
        text_config={**TEXT, "model_type": "llama"},
        image_token_id=IMAGE,
        scale_factor=2,
        pad_token_id=0,
    )

    def images() -> dict[str, Any]:
        mask = torch.ones(1, 1, 56, 56, dtype=torch.bool)
        return {"pixel_values": torch.randn(1, 1, 3, 56, 56), "pixel_attention_mask": mask}

    return write(model(config), folder, images, 4)
