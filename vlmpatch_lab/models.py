"""Qwen2-VL and Qwen2.5-VL of any size, made from their configuration: nothing is downloaded.

``make`` writes a tiny one to a folder, with ``batches.pt`` beside it: lists of tensors as a processor would
have made them, which is all a cell needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

# Sizes of a Qwen2-VL: hidden, intermediate, layers, heads, key-value heads, vocabulary; the vision tower's
# depth, width and patch size; image patches a side.
SIZES = {
    "tiny": ((128, 256, 4, 4, 2, 64), (4, 32, 8), 4),
    "small": ((64, 128, 2, 4, 2, 64), (2, 32, 8), 4),
    "step": ((256, 512, 4, 4, 2, 4096), (4, 64, 8), 4),  # 5 million parameters
    "2b": ((1536, 8960, 28, 12, 2, 151936), (32, 1280, 14), 32),
    "7b": ((3584, 18944, 28, 28, 4, 152064), (32, 1280, 14), 32),
}
START, END, IMAGE, VIDEO = 3, 4, 5, 6  # what the tokens around and for an image are
BATCHES = 16  # rows of a folder
IGNORED = -100


def qwen(kind: str, size: str, device: str = "cpu", dtype: str = "float32") -> Any:
    """A model with the weights that its own initialisation gives it.

    Args:
        kind: ``qwen2_vl`` or ``qwen2_5_vl``.
        size: one of ``SIZES``.
        device: where it is made.
        dtype: its parameters' type, by torch's name.
    """
    config_class, model_class = (getattr(transformers, name) for name in NAMES[kind])
    text, tokens = _text(size), {"image_token_id": IMAGE, "video_token_id": VIDEO}
    tokens |= {"vision_start_token_id": START, "vision_end_token_id": END}
    # Qwen's language settings moved from the top of the configuration into `text_config` in 4.52.
    placed = {"text_config": text} if _release() >= (4, 52) else text
    config = config_class(vision_config=_vision(kind, size), **placed, **tokens)
    config.use_cache = False
    with torch.device(device):
        torch.set_default_dtype(getattr(torch, dtype))
        try:
            return model_class(config)
        finally:
            torch.set_default_dtype(torch.float32)


NAMES = {
    "qwen2_vl": ("Qwen2VLConfig", "Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration"),
}


def known() -> list[str]:
    """The kinds that the installed transformers has."""
    return [kind for kind, names in NAMES.items() if all(hasattr(transformers, name) for name in names)]


def _text(size: str) -> dict[str, Any]:
    (hidden, inner, layers, heads, kv_heads, vocabulary), _, _ = SIZES[size]
    half = hidden // heads // 2
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "rope_scaling": {"type": "mrope", "mrope_section": [half // 4, half * 3 // 8, half * 3 // 8]},
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def _vision(kind: str, size: str) -> dict[str, Any]:
    (hidden, *_), (depth, width, patch), _ = SIZES[size]
    shared = {"depth": depth, "num_heads": 16 if width > 64 else 4, "patch_size": patch}
    shared |= {"spatial_merge_size": 2, "temporal_patch_size": 2}
    if kind == "qwen2_vl":
        return {**shared, "embed_dim": width, "hidden_size": hidden, "mlp_ratio": 4 if width > 64 else 2}
    own = {"hidden_size": width, "out_hidden_size": hidden, "intermediate_size": 2 * width}
    return {**shared, **own, "window_size": 56, "fullatt_block_indexes": [1]}


def batch(size: str, tokens: int, seed: int) -> dict[str, Any]:
    """One row with one image, another for each ``seed``; shapes ``[1, image + tokens]``."""
    chance = torch.Generator().manual_seed(seed)
    _, (*_, patch), side = SIZES[size]
    image = side * side // 4
    ids = torch.randint(10, 60, (1, image + tokens), generator=chance)
    ids[0, 2], ids[0, 3 : 3 + image], ids[0, 3 + image] = START, IMAGE, END
    made = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": ids.clone(),
        "pixel_values": torch.randn(side * side, 6 * patch * patch, generator=chance),
        "image_grid_thw": torch.tensor([[1, side, side]]),
    }
    if _release() >= (5,):
        made["mm_token_type_ids"] = (ids == IMAGE).long()
    return made


def make(kind: str, folder: Path, size: str = "small") -> None:
    """Write a checkpoint and its batches to ``folder``, which may be there already."""
    torch.manual_seed(0)
    qwen(kind, size).save_pretrained(folder)
    rows = [batch(size, 12 + 2 * (number % 3), seed=number) for number in range(BATCHES)]
    for row in rows:
        row["labels"][row["input_ids"] < 10] = IGNORED  # an image and what stands around it
    torch.save(rows, folder / "batches.pt")
    add_vocabulary(folder / "config.json")


def add_vocabulary(path: Path) -> None:
    """Say ``vocab_size`` at the top too, where 4.52 to 4.54 read it and no longer write it."""
    config = json.loads(path.read_text())
    nested = config.get("text_config", {}).get("vocab_size")
    if nested and (4, 52) <= _release() < (4, 55):
        path.write_text(json.dumps({"vocab_size": nested, **config}, indent=1))


def _release() -> tuple[int, ...]:
    return tuple(map(int, transformers.__version__.split(".")[:2]))
