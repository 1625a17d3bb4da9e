"""A resumed full training begins anew: the loss is that of the first step again.

What the user sees: under DDP or in one process, a vision-language model that is trained whole and resumed by
``resume_from_checkpoint`` has the optimizer and the step of the checkpoint and the weights it was made with;
``load_best_model_at_end`` ends with the last weights. A warning lists every key as missing, and every key as
unexpected.

Why: 4.52 renamed the modules of these models. ``save_pretrained`` writes the names of before, so that older
releases can read them, and ``from_pretrained`` maps them. The Trainer reads the file itself, and loads it by
``load_state_dict(…, strict=False)``, which finds nothing.

From 4.52 on. 5.23 has it too, with another mapping (``revert_weight_conversion``), which this does not read.

The change: in these two methods a key that the model does not have is mapped as ``from_pretrained`` maps it.

Upstream: https://github.com/modelscope/ms-swift/issues/7947, https://github.com/QwenLM/Qwen3-VL/issues/1763
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
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
        with _mapping(patch, MODEL.of(args, kwargs) or self.model):
            return original(self, *args, **kwargs)

    def best(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with _mapping(patch, self.model):
            return original(self, *args, **kwargs)

    patch.wrap(module.Trainer, RESUMES, resumes)
    patch.wrap(module.Trainer, BEST, best)


def _mapping(patch: Patch, model: Any) -> contextlib.AbstractContextManager[None]:
    """Within it the model loads what was saved under the names of before."""
    names: Mapping[str, str] = getattr(model, "_checkpoint_conversion_mapping", None) or {}
    load = getattr(model, "load_state_dict", None)
    if not names or load is None:
        return contextlib.nullcontext()

    def load_state_dict(state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        own = set(model.state_dict())
        return load({_own(key, own, names): value for key, value in state_dict.items()}, *args, **kwargs)

    return patch.swapped(model, "load_state_dict", load_state_dict)


def _own(key: str, own: set[str], names: Mapping[str, str]) -> str:
    """What the model calls ``key``; ``key`` itself where it knows neither."""
    if key in own:
        return key
    mapped = (re.subn(pattern, name, key) for pattern, name in names.items())
    return next((new for new, count in mapped if count and new in own), key)
