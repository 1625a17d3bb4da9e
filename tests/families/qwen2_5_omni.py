"""Qwen2.5-Omni's thinker, which is what is trained: with an audio tower that images never reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, MROPE, TEXT


def model() -> Any:
    import transformers as tf

    vision = {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    audio = {
        "num_mel_bins": 16,
        "d_model": 32,
        "encoder_layers": 1,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "output_dim": 64,
        "n_window": 8,
        "max_source_positions": 64,
    }
    config = tf.Qwen2_5OmniThinkerConfig(
        text_config={**TEXT, "rope_scaling": MROPE},
        vision_config=vision,
        audio_config=audio,
        image_token_index=IMAGE,
        video_token_index=IMAGE + 1,
        audio_token_index=IMAGE + 4,
    )
    for name in ("image", "video", "audio"):  # 4.57 reads both names
        setattr(config, f"{name}_token_id", getattr(config, f"{name}_token_index", IMAGE))
    config.vision_start_token_id = IMAGE + 2  # 5.23 reads it and has no place for it
    return tf.Qwen2_5OmniThinkerForConditionalGeneration(config)


def make(folder: Path) -> int:
    return write(
        model(),
        folder,
        pixels(16, 3 * 2 * 14 * 14, image_grid_thw=[[1, 4, 4]]),
        4,
    )
