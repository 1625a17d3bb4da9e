"""Voxtral: a Whisper encoder, four of its frames to a token."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import write
from tests.families._shared.sizes import IMAGE, TEXT, VISION
from tests.families._shared.sounds import sounds


def make(folder: Path) -> int:
    import transformers as tf

    audio = {**VISION, "intermediate_size": 128, "num_mel_bins": 16, "max_source_positions": 32}
    config = tf.VoxtralConfig(text_config={**TEXT, "head_dim": 16}, audio_config=audio, audio_token_id=IMAGE)
    return write(tf.VoxtralForConditionalGeneration(config), folder, sounds(1, 16, 64), 8)
