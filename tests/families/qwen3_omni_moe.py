"""Qwen3-Omni's thinker: before transformers 5 a module an expert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.families._shared.batches import pixels, write
from tests.families._shared.sizes import IMAGE, MROPE, QWEN3_VISION, QWEN_IDS, TEXT


def model() -> Any:
    import transformers as tf

    text = {**TEXT, "head_dim": 16, "rope_scaling": {**MROPE, "mrope_interleaved": True}}
    text |= {"num_experts": 8, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
    audio = {
        "num_mel_bins": 16,
        "d_model": 32,
        "encoder_layers": 1,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "output_dim": 64,
        "n_window": 50,  # of which the lengths of what it makes are counted
        "n_window_infer": 100,
        "downsample_hidden_size": 16,
        "max_source_positions": 64,
    }
    tokens = {name: QWEN_IDS[name] for name in ("image_token_id", "video_token_id")}
    config = tf.Qwen3OmniMoeThinkerConfig(
        text_config=text, vision_config=QWEN3_VISION, audio_config=audio, audio_token_id=IMAGE + 4, **tokens
    )
    config.vision_start_token_id = IMAGE + 2
    return tf.Qwen3OmniMoeThinkerForConditionalGeneration(config)


def make(folder: Path) -> int:
    return write(
        model(),
        folder,
        pixels(16, 3 * 2 * 16 * 16, image_grid_thw=[[1, 4, 4]]),
        4,
    )
