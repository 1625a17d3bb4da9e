"""Idefics3: SigLIP and Llama, each image with a mask of its pixels."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared.idefics import idefics


def make(folder: Path) -> int:
    import transformers as tf

    return idefics(folder, tf.Idefics3Config, tf.Idefics3ForConditionalGeneration)
