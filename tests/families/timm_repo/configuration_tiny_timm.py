"""The configuration of a tiny vision-language model whose vision tower is timm's."""

from typing import Any

from transformers import PretrainedConfig


class TinyTimmConfig(PretrainedConfig):
    model_type = "tiny_timm"

    def __init__(self, text: Any = None, vision: Any = None, image_token: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text
        self.vision = vision
        self.image_token = image_token
