"""What saves a model's activations: one function each, called once on the model that is trained."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from torch.utils import checkpoint

from tests.lab import saving


def enabled(*said: dict[str, Any]) -> Callable[[Any], None]:
    """As a script does it, and as every framework does it beside an adapter."""

    def enable(model: Any) -> None:
        model.gradient_checkpointing_enable(*said)
        if hasattr(model, "peft_config"):
            model.enable_input_require_grads()

    return enable


def sequential(model: Any) -> None:
    """The projector, a sequence of three layers, in two segments that are computed again."""
    layers = next(module for name, module in model.named_modules() if name.endswith("merger.mlp"))
    layers.forward = functools.partial(checkpoint.checkpoint_sequential, layers, 2)


def compiled(model: Any) -> None:
    """Traced and differentiated by torch's compiler, and run as it comes."""
    enabled()(model)
    model.compile(backend="aot_eager")


def tiled(model: Any) -> None:
    enabled()(model)
    saving.tiled(model)


def of_deepspeed(model: Any) -> None:
    """DeepSpeed's own checkpointing, which has the reentrant form alone."""
    deepspeed = importlib.import_module("deepspeed")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    accelerator = deepspeed.accelerator.get_accelerator()
    type(accelerator).Stream = lambda self, device: None  # what it makes of a CPU's, and never uses
    deepspeed.checkpointing.configure(None)
    enabled()(model)
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = deepspeed.checkpointing.checkpoint


MEMORY: dict[str, Callable[[Any], None]] = {
    "none": lambda model: None,
    "default": enabled(),
    "nonreentrant": enabled({"use_reentrant": False}),
    "selective": saving.selective,
    "sequential": sequential,
    "compiled": compiled,
    "tiled": tiled,
    "deepspeed": of_deepspeed,
}
