"""What saves a model's activations otherwise than ``gradient_checkpointing_enable()`` as it comes."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch.utils import checkpoint


def selective(model: Any) -> None:
    """Matrix products are kept, the rest computed again."""
    contexts = functools.partial(
        checkpoint.create_selective_checkpoint_contexts,
        [torch.ops.aten.mm.default, torch.ops.aten.addmm.default],
    )
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})


def tiled(model: Any) -> None:
    """What comes behind attention two parts of a sequence after one another, as DeepSpeed's ALST has it."""
    ulysses_sp = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
    for name, module in model.named_modules():
        if name.endswith(".mlp") and hasattr(module, "gate_proj"):
            weights = [module.gate_proj.weight, module.up_proj.weight, module.down_proj.weight]
            module.forward = functools.partial(_in_two, ulysses_sp.TiledMLP, module, weights)


def _in_two(tiled_mlp: Any, module: Any, weights: list[torch.nn.Parameter], x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = tiled_mlp.apply(type(module).forward, module, x, 2, weights)
    return out
