"""What VideoLLaMA3 begins with: Qwen2 with room for its tokens, and its own tower."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.families._shared.sizes import VISION
from tests.shipped.make import VOCABULARY
from tests.shipped.models import qwen

PATCH = 14


def main(made: Path, folder: Path) -> None:
    import transformers

    qwen.main(made, folder)
    language = transformers.Qwen2ForCausalLM.from_pretrained(folder / "qwen2-tiny")
    language.resize_token_embeddings(VOCABULARY + 64)
    language.config.mm_projector_type = "mlp2x_gelu"  # as after its first stage
    language.save_pretrained(folder / "qwen2-tiny")
    save_tower(folder / "navit-tiny")  # by "navit" the repository knows it


def save_tower(tower: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tower.mkdir()
    settings = {**VISION, "model_type": "videollama3_vision_encoder", "patch_size": PATCH}
    (tower / "config.json").write_text(json.dumps(settings))
    images = {"patch_size": PATCH, "min_tokens": 4, "max_tokens": 64}
    (tower / "preprocessor_config.json").write_text(json.dumps(images))
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for name, shape in shapes().items():
        is_norm = len(shape) == 1 and name.endswith(".weight")
        found[name] = 0.05 * torch.randn(shape) + is_norm
    save_file(found, tower / "model.safetensors", {"format": "pt"})


def shapes() -> dict[str, tuple[int, ...]]:
    """Of every weight, by its name."""
    wide, inner = VISION["hidden_size"], VISION["intermediate_size"]
    weights: dict[str, tuple[int, ...]] = {
        "embeddings.patch_embedding": (wide, 3, PATCH, PATCH),
        "post_layernorm": (wide,),
    }
    for number in range(VISION["num_hidden_layers"]):
        layer = f"encoder.layers.{number}"
        weights |= {f"{layer}.{norm}": (wide,) for norm in ("layer_norm1", "layer_norm2")}
        weights |= {f"{layer}.self_attn.{name}_proj": (wide, wide) for name in ("q", "k", "v", "out")}
        weights |= {f"{layer}.mlp.fc1": (inner, wide), f"{layer}.mlp.fc2": (wide, inner)}
    biases = {f"{name}.bias": shape[:1] for name, shape in weights.items()}
    return {**{f"{name}.weight": shape for name, shape in weights.items()}, **biases}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
