"""Idefics2: a tower, a resampler that makes four tokens of an image, and Mistral."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.families._shared import files
from tests.families._shared.sizes import TEXT, VISION

TOKENS = (files.PAD, files.TURN, files.END, "<image>", "<fake_token_around_image>", "<end_of_utterance>")
LATENTS = 4
KIND = files.Kind(
    config="Idefics2Config",
    model="Idefics2ForConditionalGeneration",
    vision={**VISION, "image_size": 56, "patch_size": 14},
    text={"model_type": "mistral", "sliding_window": None},
    top=lambda ids: {
        "image_token_id": ids["<image>"],
        "perceiver_config": {
            "hidden_size": TEXT["hidden_size"],
            "resampler_n_latents": LATENTS,
            "resampler_depth": 1,
            "resampler_n_heads": 4,
            "resampler_head_dim": 16,
            "num_key_value_heads": 2,
        },
    },
    preprocessor={
        "image_processor_type": "Idefics2ImageProcessor",
        "processor_class": "Idefics2Processor",
        "size": {"longest_edge": 56, "shortest_edge": 28},
        "do_image_splitting": False,
    },
    processor={"processor_class": "Idefics2Processor", "image_seq_len": LATENTS},
    image="<image>",
    tokens=TOKENS,
)


def main(made: Path, folder: Path) -> None:
    files.build(KIND, folder / "idefics2-tiny")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
