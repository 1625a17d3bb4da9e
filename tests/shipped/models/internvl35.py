"""InternVL 3.5 as its repository saves it: the tower of the InternVL before it, in front of Qwen3."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.families._shared.sizes import TEXT
from tests.shipped import make


def main(made: Path, folder: Path) -> None:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    internvl = folder / "internvl35-tiny"
    make.internvl(internvl)
    settings, weights = json.loads((internvl / "config.json").read_text()), internvl / "model.safetensors"
    torch.manual_seed(0)
    size = {"vocab_size": settings["llm_config"]["vocab_size"], "head_dim": 16}
    text = transformers.Qwen3Config(**{**TEXT, **size, "architectures": ["Qwen3ForCausalLM"]})
    (internvl / "config.json").write_text(json.dumps({**settings, "llm_config": text.to_dict()}))
    found = {name: value for name, value in load_file(weights).items() if not name.startswith("language_")}
    language = transformers.Qwen3ForCausalLM(text).state_dict()
    found |= {f"language_model.{name}": value.clone() for name, value in language.items()}
    save_file(found, weights, {"format": "pt"})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
