"""EVE as its second stage leaves it: Qwen2 with layers of its own for what is seen, and no tower."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from tests.families._shared import files
from tests.shipped.models import qwen

SIDES = Path("EVEv2", "openai", "eve-anyratio-res800-patch16", "preprocessor_config.json")


def main(made: Path, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    qwen.main(made, folder)
    eve = (folder / "qwen2-tiny").rename(folder / "eve-tiny")
    settings = json.loads((eve / "config.json").read_text())
    (eve / "config.json").write_text(json.dumps({**settings, "model_type": "eve-qwen2"}))
    path = eve / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": files.END}))
    (folder / "anyratio").mkdir()
    shutil.copy(Path(os.environ["REPOSITORY"]) / SIDES, folder / "anyratio")
    weights = load_file(eve / "model.safetensors")
    seen = {twin: value.clone() for name, value in weights.items() if (twin := of_what_is_seen(name))}
    save_file({**weights, **seen}, eve / "model.safetensors", {"format": "pt"})


def of_what_is_seen(name: str) -> str:
    """The name of the layer that computes for images what ``name`` computes for text, if there is one."""
    *layers, part, last = name.split(".") if ".layers." in name else ("", "", "")
    if part.endswith("layernorm"):
        return ".".join((*layers, f"moe_{part}", last))
    if layers and layers[-1] == "self_attn":
        return ".".join((*layers, f"moe_{part}", last))
    if layers and layers[-1] == "mlp":
        return ".".join((*layers[:-1], "moe_mlp", part, last))
    return ""


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
