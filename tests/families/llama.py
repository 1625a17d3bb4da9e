"""Llama, no images: what PEFT's prompts and packed rows are made for."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.batches import write
from tests.families._shared.sizes import TEXT


def make(folder: Path) -> int:
    import transformers as tf

    return write(tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT)), folder, dict, 0)
