"""Configuration of the stand-in: a Qwen2 configuration with a vision and a slice part."""

from transformers import PretrainedConfig, Qwen2Config

from .modeling_navit_siglip import SiglipVisionConfig


class MiniCPMVSliceConfig(PretrainedConfig):
    model_type = "minicpmv"

    def __init__(self, patch_size=14, max_slice_nums=9, scale_resolution=448, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.max_slice_nums = max_slice_nums
        self.scale_resolution = scale_resolution


class MiniCPMVConfig(Qwen2Config):
    model_type = "minicpmv"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    def __init__(
        self,
        use_cache=True,
        query_num=64,
        image_size=448,
        drop_vision_last_layer=True,
        batch_vision_input=True,
        slice_config=None,
        vision_config=None,
        use_image_id=True,
        vision_batch_size=16,
        **kwargs,
    ):
        self.use_cache = use_cache
        self.query_num = query_num
        self.image_size = image_size
        self.drop_vision_last_layer = drop_vision_last_layer
        self.batch_vision_input = batch_vision_input
        self.use_image_id = use_image_id
        self.vision_batch_size = vision_batch_size
        self.slice_mode = True
        self.slice_config = MiniCPMVSliceConfig(**(slice_config or {"max_slice_nums": 1}))
        if isinstance(vision_config, SiglipVisionConfig):
            self.vision_config = vision_config
        else:
            self.vision_config = SiglipVisionConfig(**(vision_config or {}))
        self.patch_size = self.vision_config.patch_size
        super().__init__(**kwargs)
