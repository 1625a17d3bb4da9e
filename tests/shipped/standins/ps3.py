"""The configurations of PS3's towers, which VILA registers as it is imported."""

from __future__ import annotations

from transformers import PretrainedConfig


class PS3Config(PretrainedConfig):  # type: ignore[misc]
    model_type = "ps3"


class PS3VisionConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "ps3_vision_model"


class PS3ImageProcessor: ...


class PS3VisionModel: ...
