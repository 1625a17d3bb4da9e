"""Qwen2-VL with the head that points at a place of a screen, as GUI-Actor's warm-up leaves it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from tests.families._shared.sizes import TEXT

HEAD = "multi_patch_pointer_head"


def main(made: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    pointer = folder / "Qwen2-VL-pointer"
    shutil.copytree(made / "Qwen2-VL", pointer)
    weights = load_file(pointer / "model.safetensors")
    wide = TEXT["hidden_size"]
    torch.manual_seed(0)
    parts = {
        "self_attention": torch.nn.MultiheadAttention(wide, 8),
        "layer_norm": torch.nn.LayerNorm(wide),
        **{f"projection_{side}": projection(wide) for side in ("enc", "dec")},
    }
    for part, module in parts.items():
        weights |= {f"{HEAD}.{part}.{name}": value for name, value in module.state_dict().items()}
    save_file(weights, pointer / "model.safetensors", {"format": "pt"})


def projection(wide: int) -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(wide, wide), torch.nn.GELU(), torch.nn.Linear(wide, wide))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
