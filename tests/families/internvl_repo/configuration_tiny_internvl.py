"""The configuration of a tiny vision-language model that ships its own code."""

from typing import Any

from transformers import PretrainedConfig


class TinyInternVLConfig(PretrainedConfig):
    model_type = "tiny_internvl"

    def __init__(self, text: Any = None, vision: Any = None, image_token: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text
        self.vision = vision
        self.image_token = image_token
