"""Gemma 3n, whose tower for images is timm's, on rows with an image, with a sound, and with both.

It needs timm, which no stack of its transformers has: ``VLMPATCH_LAB_BESIDE`` names a folder with it
(``pip install --no-deps --target FOLDER timm``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.families._shared.batches import pixels
from tests.families._shared.sizes import TEXT, VOCABULARY
from tests.families._shared.sounds import Kind, sounds, write_several

TOWER, SIDE = "test_efficientnet_ln", 160  # pixels, of which 32 make a token
TOKENS = (SIDE // 32) ** 2
SEEN, HEARD, FRAMES = 8, 8, 32  # words of the vocabularies of images and of sounds


def make(folder: Path) -> int:
    import transformers as tf

    text: dict[str, Any] = {name: value for name, value in TEXT.items() if name != "tie_word_embeddings"}
    text |= {"num_kv_shared_layers": 0, "head_dim": 16, "sliding_window": 16}  # F52 is another story
    text |= {"layer_types": ["sliding_attention", "full_attention"], "laurel_rank": 4}
    text |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY - SEEN - HEARD}
    text |= {"activation_sparsity_pattern": [0.0] * 2}
    audio: dict[str, Any] = {"hidden_size": 32, "input_feat_size": 16, "conf_num_hidden_layers": 1}
    audio |= {"conf_num_attention_heads": 4, "conf_attention_chunk_size": 4, "conf_attention_context_left": 5}
    audio |= {"sscp_conv_channel_size": [8, 4], "conf_reduction_factor": 1, "vocab_size": HEARD}
    first = VOCABULARY - SEEN - HEARD
    config = tf.Gemma3nConfig(
        text_config=text,
        vision_config={"architecture": TOWER, "hidden_size": 256, "vocab_size": SEEN, "vocab_offset": first},
        audio_config=audio | {"vocab_offset": first + SEEN},
        vision_soft_tokens_per_image=TOKENS,
        audio_soft_tokens_per_image=FRAMES // 4,
        image_token_id=first,
        audio_token_id=first + SEEN,
    )
    seen = Kind(pixels(1, 3, SIDE, SIDE), TOKENS, first)
    heard = Kind(sounds(1, FRAMES, 16, mask="input_features_mask", frames=FRAMES), FRAMES // 4, first + SEEN)
    return write_several(tf.Gemma3nForConditionalGeneration(config), folder, [seen, heard])
