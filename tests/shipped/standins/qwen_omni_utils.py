"""Images of conversations, as wide and high as is asked; the package of this name reads sounds too."""

from __future__ import annotations

from typing import Any

from tests.shipped.standins import qwen_vl_utils


def process_mm_info(messages: list[Any], **more: Any) -> tuple[Any, ...]:
    """Sounds, images, videos: of the first and the last there are none."""
    parts = [part for turns in messages for turn in turns for part in turn["content"] if "image" in part]
    images = [
        qwen_vl_utils.opened(part["image"]).resize((part["resized_width"], part["resized_height"]))
        for part in parts
    ]
    return None, images or None, None
