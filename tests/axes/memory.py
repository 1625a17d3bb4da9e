"""What saves a model's activations: one function each, called once on the model that is trained."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint


def enabled(*said: dict[str, Any]) -> Callable[[Any], None]:
    """As a script does it, and as every framework does it beside an adapter."""

    def enable(model: Any) -> None:
        model.gradient_checkpointing_enable(*said)
        if hasattr(model, "peft_config"):
            model.enable_input_require_grads()

    return enable


def selective(model: Any) -> None:
    """Matrix products are kept, the rest computed again."""
    contexts = functools.partial(
        checkpoint.create_selective_checkpoint_contexts,
        [torch.ops.aten.mm.default, torch.ops.aten.addmm.default],
    )
    enabled({"use_reentrant": False, "context_fn": contexts})(model)


def sequential(model: Any) -> None:
    """The projector, a sequence of three layers, in two segments that are computed again."""
    layers = next(module for name, module in model.named_modules() if name.endswith("merger.mlp"))
    layers.forward = functools.partial(checkpoint.checkpoint_sequential, layers, 2)


MEMORY: dict[str, Callable[[Any], None]] = {
    "none": lambda model: None,
    "default": enabled(),
    "selective": selective,
    "sequential": sequential,
}
