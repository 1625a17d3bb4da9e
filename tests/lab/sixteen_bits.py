"""Trainings in 16 bits, as scenarios of ``field.py``: an engine is held against the model by itself.

An angle is a position times a frequency, so that of frequencies rounded to 16 bits a position of a thousand
turns radians too far, and biases that are near to each other choose other experts. In a short row, and where
biases are zeros, nothing of it shows.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from vlmpatch_lab import engines, loading
from vlmpatch_lab.cell import Cell

TOKENS, SIDE = 1500, 40  # of a row; patches along an image's side
# What weights are multiplied by: a model drawn at random looks everywhere alike, and adds little of it.
SHARP = {
    "q_proj.weight": 16.0,
    "k_proj.weight": 16.0,
    "qkv.weight": 16.0,
    "o_proj.weight": 16.0,
    "attn.proj.weight": 16.0,
}
OFF = 0.01  # of the largest logit: an engine that rounds nothing more has the same bits


def far_positions(cell: Cell, folder: Path) -> torch.Tensor:
    """What the model puts out of a long row of text behind a large image; see ``checked``."""
    return checked(cell, folder, row(folder), sharpened)


def near_biases(cell: Cell, folder: Path) -> torch.Tensor:
    """What it puts out of a text where eight bits do not tell its routers' biases apart; see ``checked``."""
    ids = torch.randint(20, 60, (1, 64), generator=torch.Generator().manual_seed(0))
    return checked(cell, folder, {"input_ids": ids}, biased)


def checked(
    cell: Cell,
    folder: Path,
    batch: dict[str, torch.Tensor],
    change: Callable[[str, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The logits of ``batch`` in ``cell``'s engine, once ``change`` has been made to each tensor by its name.

    Raises:
        ValueError: they are not what the model puts out by itself in 16 bits.
    """
    with tempfile.TemporaryDirectory(prefix="sixteen-bits-") as place:
        write_changed(folder, place, change)
        with torch.no_grad():
            right = load(place, torch.bfloat16)(**batch).logits
        found = in_engine(cell, place, batch)
    off = ((found - right).abs().max() / right.abs().max()).item()
    if not off <= OFF:
        raise ValueError(f"logits are {off:.2g} off")
    return found.detach()


def in_engine(cell: Cell, place: str, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Its logits of ``batch``."""
    if cell.engine == "fsdp1":
        return shard(load(place, torch.float32))(**batch).logits
    partitioned = None
    if cell.engine == "zero3":
        engines.begin_deepspeed(cell)
        integrations = importlib.import_module("transformers.integrations")
        partitioned = integrations.HfDeepSpeedConfig(engines.deepspeed_config(cell))  # as long as it lives
    model = load(place, torch.bfloat16)
    assert (partitioned is None) != hasattr(next(model.parameters()), "ds_id")
    logits: torch.Tensor = engines.ENGINES[cell.engine](cell, model).outputs(batch).logits
    return logits


def shard(model: Any) -> Any:
    """As accelerate has FSDP1 in bf16; by itself it shards where it finds an accelerator."""
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import FullyShardedDataParallel

    plugin = FullyShardedDataParallelPlugin()
    plugin.set_mixed_precision("bf16")
    return FullyShardedDataParallel(
        model,
        mixed_precision=plugin.mixed_precision_policy,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )


def load(place: str, dtype: torch.dtype) -> Any:
    model = loading.class_of(Path(place)).from_pretrained(place, torch_dtype=dtype)
    model.config.use_cache = False
    return model


def write_changed(folder: Path, place: str, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    """Write the checkpoint of ``folder`` into ``place``."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, place, dirs_exist_ok=True)
    weights = Path(place) / "model.safetensors"
    changed = {name: change(name, tensor) for name, tensor in load_file(weights).items()}
    save_file(changed, weights, metadata={"format": "pt"})


def sharpened(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Attention that tells positions apart."""
    return tensor * next((times for part, times in SHARP.items() if name.endswith(part)), 1.0)


def biased(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Biases of about the size of a trained model's, from the last expert to the first."""
    if not name.endswith("e_score_correction_bias"):
        return tensor
    return 8 + torch.arange(len(tensor), 0, -1) / 500


def row(folder: Path) -> dict[str, torch.Tensor]:
    """A large image and a long text, of shapes [1, TOKENS] and [SIDE * SIDE, values of a patch]."""
    config: Any = transformers.AutoConfig.from_pretrained(folder)
    chance = torch.Generator().manual_seed(0)
    vision = config.vision_config
    values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    ids = torch.randint(20, 60, (1, TOKENS), generator=chance)  # words, behind what stands for images
    merged = (SIDE // vision.spatial_merge_size) ** 2
    ids[0, 0], ids[0, 1 : 1 + merged] = config.vision_start_token_id, config.image_token_id
    batch = {
        "input_ids": ids,
        "pixel_values": torch.randn(SIDE * SIDE, values, generator=chance),
        "image_grid_thw": torch.tensor([[1, SIDE, SIDE]]),
    }
    told = "mm_token_type_ids"  # which transformers 5 asks for
    return {**batch, told: (ids == config.image_token_id).int()} if is_asked_for(folder, told) else batch


def is_asked_for(folder: Path, name: str) -> bool:
    import inspect

    return name in inspect.signature(loading.class_of(folder).forward).parameters
