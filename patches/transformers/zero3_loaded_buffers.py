"""Nothing is seen: under ZeRO-3 buffers of a checkpoint are loaded on the first rank alone, or on none.

What the user sees: no error. A model that ``from_pretrained`` loads under ZeRO-3 has the buffers it was made
with where its checkpoint has others. Of a module that has weights too the first rank has the right ones:
ranks send their tokens to different experts (``e_score_correction_bias`` of GLM-4.5V, DeepSeek-V3 and what
is made like it). Of one that has none no rank has them. From transformers 5.0 on no rank has any, and a
``LOAD REPORT`` says ``MISSING`` of them (Gemma 4: ``input_max``, ``layer_scalar``).

Why: weights are loaded by the first rank, where a module has any, and handed to the others as they are
partitioned. Buffers are not partitioned, so that nobody hands them on.

In transformers 4.45 and all after it (read there; run on 4.51 to 4.57, 5.3 and 5.5); 5.6 loads buffers on
every rank. From 5.0 on the first rank loses its own as well: what is not marked as loaded is drawn anew.
This acts from 4.51 on, which brought such routers.

The change: after a file was loaded each rank copies what it has read of the model's buffers into them, under
the names that transformers 5 gave them, and marks them as loaded, as 5.6 does. Left alone: buffers that are
not saved with a model, and those of other shapes.

Upstream: https://github.com/huggingface/transformers/issues/45397,
https://github.com/huggingface/transformers/pull/45402, https://github.com/modelscope/ms-swift/issues/9078
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.saved_buffers import saved_buffers

NAME = "_load_state_dict_into_zero3_model"
RENAME = "_apply_weight_conversions_to_state_dict"  # of transformers 5, called by the above
MODEL, STATE = Argument(0, "model_to_load"), Argument(1, "state_dict")
MARK = "_is_hf_initialized"
HANDS_ON = "with deepspeed.zero.GatheredParameters(params_to_gather, modifier_rank=0):"

_renamed: ContextVar[Mapping[str, Any] | None] = ContextVar("renamed", default=None)


def look(code: Code) -> str | None:
    """It must hand on weights, and say nothing of buffers."""
    load = code.function(NAME)
    if load is None:
        return "no function of its own loads a checkpoint under ZeRO-3"
    if "named_buffers" in load:
        return "buffers are loaded on every rank"
    if HANDS_ON not in load or load.parameters[:2] != (MODEL.name, STATE.name):
        raise Unrecognised(f"{NAME} loads as in no known release")
    if "weight_mapping" in load and f"state_dict = {RENAME}(" not in load:
        raise Unrecognised(f"{NAME} loads as in no known release")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Load buffers after weights."""

    def load(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        before = _renamed.set(None)
        try:
            found = original(*args, **kwargs)
            renamed = _renamed.get()
        finally:
            _renamed.reset(before)
        state = STATE.of(args, kwargs) if renamed is None else renamed
        filled = fill(MODEL.of(args, kwargs), state)
        if isinstance(found, tuple):
            _say_loaded(patch, filled, found[1])
        return found

    patch.wrap(module, NAME, load)
    if hasattr(module, RENAME):
        patch.wrap(module, RENAME, _rename)


def _rename(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    found = original(*args, **kwargs)
    _renamed.set(found)
    return found


def _say_loaded(patch: Patch, filled: Mapping[str, Any], missing: set[str]) -> None:
    """Transformers 5 warns of what is in ``missing``, and draws anew what is not marked."""
    missing.difference_update(filled)
    for buffer in filled.values():
        patch.replace(buffer, MARK, True)


def fill(model: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Copy into the buffers of ``model`` what ``state`` has of them; returns those, by their names."""
    import torch

    filled = {}
    for name, buffer in saved_buffers(model):
        value = _value(model, state, name)
        if buffer.is_meta or not isinstance(value, torch.Tensor) or value.is_meta:
            continue
        if value.shape == buffer.shape:
            with torch.no_grad():
                buffer.copy_(value)
            filled[name] = buffer
    return filled


def _value(model: Any, state: Mapping[str, Any], name: str) -> Any:
    """Transformers 5 takes the names of a base model too."""
    prefix = getattr(model, "base_model_prefix", "")
    return state.get(name, state.get(name.removeprefix(f"{prefix}.")))
