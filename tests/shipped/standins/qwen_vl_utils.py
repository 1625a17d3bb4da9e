"""Images of a conversation, opened; the package of this name brings a decoder of videos along."""

from __future__ import annotations

from typing import Any

from PIL import Image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

__all__ = ["process_vision_info", "smart_resize"]


def process_vision_info(messages: list[Any], **more: Any) -> tuple[Any, ...]:
    conversations = messages if messages and isinstance(messages[0], list) else [messages]
    parts = [
        part
        for conversation in conversations
        for message in conversation
        if not isinstance(message["content"], str)
        for part in message["content"]
        if "image" in part
    ]
    images = [opened(part["image"]) for part in parts]
    return (images or None, None, {}) if more.get("return_video_kwargs") else (images or None, None)


def opened(image: Any) -> Image.Image:
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    return Image.open(str(image).removeprefix("file://")).convert("RGB")
