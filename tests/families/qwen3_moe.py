"""Qwen3-MoE, no images: eight experts, of which a token sees one. Before transformers 5 each is a module."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import write
from tests.families._shared.sizes import TEXT


def make(folder: Path) -> int:
    import transformers as tf

    experts = {"num_experts": 8, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
    config = tf.Qwen3MoeConfig(**TEXT, **experts, head_dim=16, decoder_sparse_step=1, mlp_only_layers=[])
    return write(tf.Qwen3MoeForCausalLM(config), folder, dict, 0)
