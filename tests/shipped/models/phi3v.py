"""Phi-3-vision as it is downloaded, its code beside its weights: that of a repository's copy of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.families._shared.sizes import TEXT
from tests.shipped.make import LLAMA, VOCABULARY

CODE = Path("src", "model", "Phi3_vision")
CHAT = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
WIDE = 1024  # its code knows no other
TOWER: dict[str, Any] = {"hidden_size": WIDE, "intermediate_size": 64, "num_hidden_layers": 2}
TOWER |= {"num_attention_heads": 16, "image_size": 336, "patch_size": 14, "projection_dim": 768}


def main(made: Path, folder: Path) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file

    phi, code = folder / "Phi-3-vision-tiny", Path(os.environ["REPOSITORY"]) / CODE
    shutil.copytree(code, phi, ignore=shutil.ignore_patterns("special_tokens_map.json"))
    shutil.copy(made / "tinyllama" / "tokenizer.json", phi)
    tokenizer = json.loads((made / "tinyllama" / "tokenizer_config.json").read_text())
    tokenizer |= {"chat_template": CHAT, "tokenizer_class": "LlamaTokenizerFast"}
    (phi / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    marks = {"bos_token_id": LLAMA["<s>"], "eos_token_id": LLAMA["</s>"], "pad_token_id": LLAMA["<unk>"]}
    text = {**TEXT, **marks, "num_key_value_heads": 4, "max_position_embeddings": 4096}
    text["vocab_size"] = VOCABULARY
    settings = json.loads((code / "config.json").read_text())
    settings |= {**text, "rope_scaling": None, "sliding_window": None, "torch_dtype": "float32"}
    (phi / "config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    language = transformers.Phi3ForCausalLM(transformers.Phi3Config(**text))
    tower = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**TOWER, hidden_act="quick_gelu"))
    images, width = "model.vision_embed_tokens", language.config.hidden_size
    found = {name: value.clone() for name, value in language.state_dict().items()}
    found |= {f"{images}.img_processor.{name}": value.clone() for name, value in tower.state_dict().items()}
    found[f"{images}.wte.weight"] = found["model.embed_tokens.weight"].clone()
    found |= {
        f"{images}.glb_GN": torch.zeros(1, 1, 4 * WIDE),
        f"{images}.sub_GN": torch.zeros(1, 1, 1, 4 * WIDE),
    }
    for name, size in {"0": 4 * WIDE, "2": width}.items():
        projection = f"{images}.img_projection.{name}"
        found |= {
            f"{projection}.weight": 0.05 * torch.randn(width, size),
            f"{projection}.bias": torch.zeros(width),
        }
    save_file(found, phi / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
