"""Ranks whose images were cut into different numbers of slices wait for each other forever under ZeRO-3.

What the user sees: a hang on NCCL, ``collective mismatch`` on gloo, with images in every batch.

Why: MiniCPM-V runs its vision tower once per group of ``vision_batch_size`` slices. A rank with more slices
calls it more often, and each call gathers; the same where one rank evaluates a sample without an image.

In MiniCPM-V 2.6's and MiniCPM-o 2.6's remote code, every revision that has ``vision_batch_size``.

The change, only where ZeRO-3 or FSDP gathers the tower: the ranks agree on the largest number of calls, one
all-reduce of one integer a forward, and those that have fewer run the tower on a blank image for the rest,
after their own calls and before the resampler. It is tied to the resampler's input in a way that passes zeros
back and adds no number.

Upstream: https://github.com/OpenBMB/MiniCPM-V/issues/644
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

from .._shared.blank_image import add_nothing
from .._shared.distributed import largest, world
from .._shared.minicpmv import NOT_THE_MODEL, model_class, model_name
from .._shared.training_group import waiting_groups

DATA = Argument(0, "data")
_PATCHES = 2  # a side of the blank image


def look(code: Code) -> str | None:
    """The class must call its tower in groups of ``vision_batch_size`` slices, then the resampler."""
    name = model_name(code)
    if name is None:
        return NOT_THE_MODEL
    if code.function(f"{name}.get_vllm_embedding") is None:
        return f"{name} has no get_vllm_embedding"
    if not all(part in code.source for part in ("vision_batch_size", "self.vpm(", "self.resampler(")):
        return f"{name} calls its tower once, however many slices there are"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Have every rank call the tower as often as the one that calls it most."""

    def as_often(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        own, extra = _calls(self, DATA.of(args, kwargs))
        if not extra:
            return original(self, *args, **kwargs)
        if not own:  # an evaluation without an image: neither the tower nor the resampler runs
            _run_all(self, extra)
            return original(self, *args, **kwargs)

        def before_resampler(_module: Any, inputs: tuple[Any, ...]) -> Any:
            handle.remove()
            found = [_run_tower(self) for _ in range(extra)]
            return (add_nothing(inputs[0], found), *inputs[1:])

        # First of its hooks: the resampler's own gather comes after the tower's.
        handle = self.resampler.register_forward_pre_hook(before_resampler, prepend=True)
        try:
            return original(self, *args, **kwargs)
        finally:
            handle.remove()

    patch.wrap(model_class(module), "get_vllm_embedding", as_often)


def _calls(model: Any, data: Any) -> tuple[int, int]:
    """How often this rank calls its tower, and how much more often another does."""
    if "vision_hidden_states" in data or world() == 1:
        return 0, 0
    groups = waiting_groups([model.vpm, model.resampler])
    if not groups:
        return 0, 0
    slices = sum(len(images) for images in data["pixel_values"])
    own = -(-slices // int(model.config.vision_batch_size)) if slices else int(model.training)
    return own, largest(own, groups, data["input_ids"].device) - own


def _run_tower(model: Any) -> Any:
    import torch

    side = _PATCHES * model.config.patch_size
    embedding = model.get_input_embeddings().weight
    blank = torch.zeros((1, 3, side, side), device=embedding.device, dtype=embedding.dtype)
    return model.vpm(blank).last_hidden_state


def _run_all(model: Any, times: int) -> None:
    import torch

    hidden = [_run_tower(model) for _ in range(times)]
    model.resampler(hidden[-1], torch.tensor([[_PATCHES, _PATCHES]], dtype=torch.int32))
