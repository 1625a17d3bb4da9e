"""Llama 4, whose tower says its widths under names of its own."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared import small

VISION = {
    "intermediate_size": 128,
    "projector_input_dim": 64,
    "projector_output_dim": 64,
    "vision_output_dim": 64,
}


def make(folder: Path) -> int:
    return small.make("llama4", folder, vision=VISION)
