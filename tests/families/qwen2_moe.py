"""Qwen3-MoE of a year before, with an expert that every token sees; no images."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import write
from tests.families._shared.sizes import TEXT


def make(folder: Path) -> int:
    import transformers as tf

    experts = {"num_experts": 8, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
    experts |= {"shared_expert_intermediate_size": 32, "decoder_sparse_step": 1}
    return write(tf.Qwen2MoeForCausalLM(tf.Qwen2MoeConfig(**TEXT, **experts)), folder, dict, 0)
