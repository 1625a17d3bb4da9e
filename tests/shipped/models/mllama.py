"""Llama 3.2 Vision, with a processor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.families._shared import files
from tests.families._shared.sizes import VISION

TILES = [[1, 1], [1, 2], [2, 1]]
TOKENS = (
    *(files.PAD, files.TURN, files.END, "<|image|>", "<|begin_of_text|>", "<|eot_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|finetune_right_pad_id|>"),
)
TOWER: dict[str, Any] = {
    **VISION,
    "attention_heads": 4,
    "num_global_layers": 1,
    "vision_output_dim": 64,
    "image_size": 28,
    "patch_size": 14,
    "max_num_tiles": 2,
    "intermediate_layers_indices": [0],
    "supported_aspect_ratios": TILES,
}
KIND = files.Kind(
    config="MllamaConfig",
    model="MllamaForConditionalGeneration",
    vision=TOWER,
    text={"num_hidden_layers": 3, "cross_attention_layers": [1], "rope_scaling": {"rope_type": "default"}},
    top=lambda ids: {"image_token_index": ids["<|image|>"]},
    preprocessor={
        "image_processor_type": "MllamaImageProcessor",
        "processor_class": "MllamaProcessor",
        "size": {"height": 28, "width": 28},
        "max_image_tiles": 2,
    },
    image="<|image|>",
    tokens=TOKENS,
)


def main(folder: Path) -> None:
    files.build(KIND, folder / "mllama-tiny")
    path = folder / "mllama-tiny" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bos_token": "<|begin_of_text|>"}))


if __name__ == "__main__":
    main(Path(sys.argv[2]))
