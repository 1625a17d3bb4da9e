"""The configuration of the stand-in for MiniCPM-o: Qwen2's, with a part for images and one for sounds."""

from typing import Any

from transformers import Qwen2Config, WhisperConfig

from .modeling_navit_siglip import SiglipVisionConfig


class MiniCPMOConfig(Qwen2Config):
    model_type = "minicpmo"

    def __init__(
        self,
        query_num: int = 64,
        drop_vision_last_layer: bool = False,
        vision_batch_size: int = 16,
        vision_config: Any = None,
        audio_config: Any = None,
        audio_pool_step: int = 2,
        audio_chunk_length: float = 1.0,
        init_audio: bool = True,
        **kwargs: Any,
    ) -> None:
        self.query_num = query_num
        self.drop_vision_last_layer = drop_vision_last_layer
        self.vision_batch_size = vision_batch_size
        self.vision_config = _as(SiglipVisionConfig, vision_config)
        self.audio_config = _as(WhisperConfig, audio_config)
        self.patch_size = self.vision_config.patch_size
        self.audio_pool_step = audio_pool_step
        self.audio_chunk_length = audio_chunk_length
        self.init_audio = init_audio
        super().__init__(**kwargs)


def _as(kind: Any, given: Any) -> Any:
    return given if isinstance(given, kind) else kind(**(given or {}))
