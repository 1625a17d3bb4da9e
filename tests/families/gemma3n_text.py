"""Gemma 3n's language model, whose last layers take keys and values of earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.families._shared.batches import write
from tests.families._shared.sizes import TEXT


def make(folder: Path) -> int:
    import transformers as tf

    more: dict[str, Any] = {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 16,
        "head_dim": 16,
        "laurel_rank": 4,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": TEXT["vocab_size"],
        "activation_sparsity_pattern": [0.0] * 4,
    }
    return write(tf.Gemma3nForCausalLM(tf.Gemma3nTextConfig(**{**TEXT, **more})), folder, dict, 0)
