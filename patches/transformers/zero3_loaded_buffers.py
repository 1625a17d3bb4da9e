"""Nothing is seen: under ZeRO-3 buffers of a checkpoint are loaded on the first rank alone, or on none.

What the user sees: no error. A model that ``from_pretrained`` loads under ZeRO-3 has the buffers it was made
with where its checkpoint has others. Of a module that has weights too the first rank has the right ones:
ranks send their tokens to different experts (``e_score_correction_bias`` of GLM-4.5V, DeepSeek-V3 and what
is made like it). Of one that has none no rank has them.

Why: weights are loaded by the first rank, where a module has any, and handed to the others as they are
partitioned. Buffers are not partitioned, so that nobody hands them on.

In transformers 4.45 and all after it (read there; run on 4.51 to 4.57); 5.6 loads buffers on every rank. This
acts from 4.51 on, which brought such routers, and below 5.0, from where on what is not marked as loaded is
drawn anew.

The change: after a file was loaded each rank copies what it has read of the model's buffers into them, as 5.6
does. Left alone: buffers that are not saved with a model, and those of other shapes.

Upstream: https://github.com/huggingface/transformers/blob/v5.6.0/src/transformers/integrations/deepspeed.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

NAME = "_load_state_dict_into_zero3_model"
MODEL, STATE = Argument(0, "model_to_load"), Argument(1, "state_dict")
HANDS_ON = "with deepspeed.zero.GatheredParameters(params_to_gather, modifier_rank=0):"


def look(code: Code) -> str | None:
    """It must hand on weights, and say nothing of buffers."""
    load = code.function(NAME)
    if load is None:
        return "no function of its own loads a checkpoint under ZeRO-3"
    if "named_buffers" in load:
        return "buffers are loaded on every rank"
    if HANDS_ON not in load or load.parameters[:2] != (MODEL.name, STATE.name):
        raise Unrecognised(f"{NAME} loads as in no known release")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Load buffers after weights."""

    def load(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        fill(MODEL.of(args, kwargs), STATE.of(args, kwargs))
        return found

    patch.wrap(module, NAME, load)


def fill(model: Any, state: Mapping[str, Any]) -> None:
    """Copy into the buffers of ``model`` what ``state`` has of them, by the same names."""
    import torch

    for name, buffer in saved_buffers(model):
        value = state.get(name)
        if isinstance(value, torch.Tensor) and value.shape == buffer.shape and not value.is_meta:
            with torch.no_grad():
                buffer.copy_(value)


def saved_buffers(model: Any) -> Iterator[tuple[str, Any]]:
    """The buffers that a checkpoint of ``model`` has, and that hold numbers."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set and not buffer.is_meta:
                yield f"{prefix}.{name}" if prefix else name, buffer
