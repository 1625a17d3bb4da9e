"""A resumed full training begins anew: the loss is that of the first step again.

What the user sees: under DDP or in one process, a vision-language model that is trained whole and resumed by
``resume_from_checkpoint`` has the optimizer and the step of the checkpoint and the weights it was made with;
``load_best_model_at_end`` ends with the last weights. A warning lists every key as missing, and every key as
unexpected.

Why: 4.52 renamed the modules of these models. ``save_pretrained`` writes the names of before, so that older
releases can read them, and ``from_pretrained`` maps them. The Trainer reads the file itself, and loads it by
``load_state_dict(…, strict=False)``, which finds nothing.

From 4.52 on, 5.23 included.

The change: in these two methods a key that the model does not have is mapped as ``from_pretrained`` maps it.
In transformers 5 that is asked of what ``save_pretrained`` itself asks for the names. Tensors that it splits
before it writes them (experts) are not put together again: the Trainer's warning lists them as missing.

Upstream: https://github.com/modelscope/ms-swift/issues/7947, https://github.com/QwenLM/Qwen3-VL/issues/1763
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

RESUMES, BEST = "_load_from_checkpoint", "_load_best_model"
MODEL = Argument(1, "model")


def look(code: Code) -> str | None:
    """The Trainer must load a file's keys as they are."""
    function = code.function(f"Trainer.{RESUMES}")
    if function is None:
        raise Unrecognised(f"Trainer has no {RESUMES}")
    return None if "load_state_dict(state_dict, False)" in function else "this Trainer loads by other means"


def apply(patch: Patch, module: ModuleType) -> None:
    """Map the keys on their way into the model."""

    def resumes(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        model = MODEL.of(args, kwargs)
        with _mapping(patch, self.model if model is None else model):
            return original(self, *args, **kwargs)

    def best(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with _mapping(patch, self.model):
            return original(self, *args, **kwargs)

    patch.wrap(module.Trainer, RESUMES, resumes)
    patch.wrap(module.Trainer, BEST, best)


def _mapping(patch: Patch, model: Any) -> contextlib.AbstractContextManager[None]:
    """Within it a model of transformers loads what was saved under the names of before."""
    import transformers

    if not isinstance(model, transformers.PreTrainedModel):
        return contextlib.nullcontext()
    load = model.load_state_dict

    def load_state_dict(state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        own = model.state_dict()
        strange = state_dict.keys() - own.keys()
        known = (_by_pattern(model, strange, own) or _by_saving(model, own)) if strange else {}
        names = {key: known[key] for key in strange if known.get(key, key) != key}
        if names:
            state_dict = {names.get(key, key): value for key, value in state_dict.items()}
        return load(state_dict, *args, **kwargs)

    return patch.swapped(model, "load_state_dict", load_state_dict)


def _by_pattern(model: Any, strange: Iterable[str], own: Mapping[str, Any]) -> dict[str, str]:
    """transformers 4: a class has patterns of names before, with the names of now."""
    patterns: Mapping[str, str] = getattr(model, "_checkpoint_conversion_mapping", None) or {}
    names = {}
    for key in strange:
        mapped = (re.subn(pattern, name, key) for pattern, name in patterns.items())
        if (new := next((new for new, count in mapped if count and new in own), None)) is not None:
            names[key] = new
    return names


def _by_saving(model: Any, own: Mapping[str, Any]) -> dict[str, str]:
    """transformers 5: what ``save_pretrained`` calls the tensors of this model."""
    import torch

    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return {}
    named = {key: torch.empty_like(tensor, device="meta") for key, tensor in own.items()}
    keys = {id(tensor): key for key, tensor in named.items()}
    saved = revert_weight_conversion(model, dict(named))
    return {name: keys[id(tensor)] for name, tensor in saved.items() if id(tensor) in keys}
