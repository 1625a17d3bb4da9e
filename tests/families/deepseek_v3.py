"""DeepSeek-V3, no images: the first block dense; the others ask each expert whether a token came."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import write
from tests.families._shared.sizes import DEEPSEEK, TEXT


def make(folder: Path) -> int:
    import transformers as tf

    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16}
    ranks |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    config = tf.DeepseekV3Config(**{**TEXT, "num_key_value_heads": 4}, **ranks, **DEEPSEEK)
    return write(tf.DeepseekV3ForCausalLM(config), folder, dict, 0)
