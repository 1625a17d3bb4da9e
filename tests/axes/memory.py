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
    """Every second matrix product is kept, the rest computed again."""
    policy, choice = _Every(2), checkpoint.CheckpointPolicy
    contexts = functools.partial(
        checkpoint.create_selective_checkpoint_contexts,
        lambda context, op, *args, **kwargs: policy(op, context.is_recompute, choice),
    )
    enabled({"use_reentrant": False, "context_fn": contexts})(model)


class _Every:
    """Of the matrix products of a forward, and of its recomputation alike, each ``number``-th."""

    def __init__(self, number: int) -> None:
        self.number, self.seen = number, {False: 0, True: 0}

    def __call__(self, op: Any, again: bool, choice: Any) -> Any:
        if op not in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            return choice.PREFER_RECOMPUTE
        self.seen[again] += 1
        return choice.MUST_SAVE if self.seen[again] % self.number else choice.PREFER_RECOMPUTE


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
