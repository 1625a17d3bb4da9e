"""Granite Speech: a conformer with running means, and a Q-Former that makes two tokens of eight frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.families._shared.batches import write
from tests.families._shared.sizes import IMAGE, TEXT, VISION
from tests.families._shared.sounds import sounds

FRAMES, BANDS, WINDOW, RATE = 64, 16, 8, 4


def make(folder: Path) -> int:
    import transformers as tf

    audio: dict[str, Any] = {
        "input_dim": BANDS,
        "hidden_dim": 32,
        "num_layers": 2,
        "num_heads": 4,
        "output_dim": 8,
    }
    audio |= {"context_size": 16, "max_pos_emb": 16, "dropout": 0.0}
    projector: dict[str, Any] = {
        **VISION,
        "model_type": "blip_2_qformer",
        "num_hidden_layers": 1,
        "encoder_hidden_size": 32,
    }
    projector |= {"cross_attention_frequency": 1, "hidden_dropout_prob": 0.0}
    projector |= {"attention_probs_dropout_prob": 0.0}
    config = tf.GraniteSpeechConfig(
        text_config={**TEXT, "model_type": "granite"},
        encoder_config=audio,
        projector_config=projector,
        audio_token_index=IMAGE,
        has_lora_adapter=False,
        downsample_rate=RATE,
        window_size=WINDOW,
        tie_word_embeddings=False,
    )
    model = tf.GraniteSpeechForConditionalGeneration(config)
    return write(model, folder, sounds(1, FRAMES, BANDS), FRAMES // RATE)
