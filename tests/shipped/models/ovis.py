"""Ovis 2.5 as its repository saves it: Qwen3, a tower, and a vocabulary of what is seen."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.families._shared import files
from tests.families._shared.sizes import TEXT, VISION
from tests.families.qwen2_vl import KIND as QWEN2_VL

PATCH, STRIDE, SEEN, INDICATORS = 14, 2, 64, 4


def main(folder: Path) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file

    ovis = folder / "ovis-tiny"
    ovis.mkdir()
    known = files.write_tokenizer(QWEN2_VL, ovis)
    torch.manual_seed(0)
    ids = {"bos_token_id": None, "eos_token_id": known[files.END], "pad_token_id": known[files.PAD]}
    text = transformers.Qwen3Config(**{**TEXT, **ids, "head_dim": 16, "vocab_size": len(known) + 8})
    language = transformers.Qwen3ForCausalLM(text)
    tower: dict[str, Any] = {
        **VISION,
        "model_type": "siglip2_navit",
        "patch_size": PATCH,
        "image_size": 4 * PATCH,
    }
    tower |= {"num_patches": -1, "hidden_stride": STRIDE, "window_size": 8 * PATCH, "use_rope": True}
    settings = {
        "model_type": "ovis",
        "architectures": ["Ovis"],
        "llm_config": {**text.to_dict(), "model_type": "qwen3"},
        "vit_config": {**tower, "preserve_original_pe": True, "temporal_patch_size": 1},
        "visual_vocab_size": SEEN,
        "hidden_size": text.hidden_size,
        "conversation_formatter_class": "Qwen3ConversationFormatter",
    }
    (ovis / "config.json").write_text(json.dumps(settings))
    transformers.SiglipImageProcessor(size={"height": 56, "width": 56}).save_pretrained(ovis)
    found = {f"llm.{name}": value.clone() for name, value in language.state_dict().items()}
    for name, shape in shapes(text.hidden_size).items():
        found[name] = 0.05 * torch.randn(shape) + (len(shape) == 1 and not name.endswith(".bias"))
    save_file(found, ovis / "model.safetensors", {"format": "pt"})


def shapes(language: int) -> dict[str, tuple[int, ...]]:
    """Of the tower, of its head and of what is seen, by their names."""
    wide, inner = VISION["hidden_size"], VISION["intermediate_size"]
    tower, head = "visual_tokenizer.vit.vision_model", SEEN - INDICATORS
    patches = f"{tower}.embeddings.patch_embedding"
    found: dict[str, tuple[int, ...]] = {
        f"{patches}.weight": (wide, 3, PATCH, PATCH),
        f"{patches}.bias": (wide,),
    }
    found[f"{tower}.embeddings.position_embedding.weight"] = (16, wide)
    found |= {"visual_tokenizer.head.0.weight": (head, wide * STRIDE**2), "vte.weight": (SEEN, language)}
    norms = {"visual_tokenizer.head.1": head, f"{tower}.post_layernorm": wide}
    linear: dict[str, tuple[int, ...]] = {}
    for number in range(VISION["num_hidden_layers"]):
        layer = f"{tower}.encoder.layers.{number}"
        norms |= {f"{layer}.layer_norm1": wide, f"{layer}.layer_norm2": wide}
        linear |= {f"{layer}.self_attn.{name}_proj": (wide, wide) for name in ("q", "k", "v", "out")}
        linear |= {f"{layer}.mlp.fc1": (inner, wide), f"{layer}.mlp.fc2": (wide, inner)}
    for name, shape in linear.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": (shape[0],)}
    for name, width in norms.items():
        found |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return found


if __name__ == "__main__":
    main(Path(sys.argv[2]))
