"""Qwen2-Audio: its forward runs tower and projector by itself."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import write
from tests.families._shared.sizes import IMAGE, TEXT
from tests.families._shared.sounds import AUDIO, sounds


def make(folder: Path) -> int:
    import transformers as tf

    config = tf.Qwen2AudioConfig(
        text_config={**TEXT, "model_type": "qwen2"}, audio_config=AUDIO, audio_token_index=IMAGE
    )
    config.audio_token_id = IMAGE  # 4.57 reads it and writes the other
    return write(
        tf.Qwen2AudioForConditionalGeneration(config),
        folder,
        sounds(1, 16, 128, mask="feature_attention_mask", frames=128),
        32,
    )
