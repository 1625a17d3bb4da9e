"""SmolVLM, which is made as Idefics3 is."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.idefics import idefics


def make(folder: Path) -> int:
    import transformers as tf

    return idefics(folder, tf.SmolVLMConfig, tf.SmolVLMForConditionalGeneration)
