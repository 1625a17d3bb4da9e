"""An adapter that was saved before transformers 4.52 is not loaded, and hardly anything says so.

What the user sees: a warning about missing adapter keys among many others, or nothing, where an adapter of
Qwen2-VL, Qwen2.5-VL, LLaVA or Gemma 3 is loaded by ``load_adapter``, by the Trainer's
``resume_from_checkpoint``, or with an older PEFT: the LoRA weights are those of an untrained adapter.

Why: in 4.52 vision-language models got an inner model, and ``model.layers.0`` became
``model.language_model.layers.0``. A model knows how its own checkpoints are renamed. PEFT 0.15 asks no model
for that, 0.18 does in ``PeftModel.from_pretrained`` alone, and 0.21 with transformers 5 not for every model:
an adapter of Qwen2-VL is not loaded at all.

Since transformers 4.52.0.

The change: where adapter weights are put into a model, keys for which it has no module are renamed as the
model renames those of its own checkpoint, if it has a module for the new name. Where some weights find no
module, or none does, a warning names them, and the program goes on as it would have.

Upstream: https://github.com/huggingface/transformers/pull/38627
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

PUT = "set_peft_model_state_dict"
MODEL, STATE = Argument(0, "model"), Argument(1, "peft_model_state_dict")
MAPPING = "_checkpoint_conversion_mapping"
CONVERSIONS = "transformers.conversion_mapping"
PREFIX = "base_model.model."
SHOWN = 3  # names in a message


def look(code: Code) -> str | None:
    """Adapter weights must go into a model by one function."""
    function = code.function(PUT)
    if function is None or function.parameters[:2] != ("model", "peft_model_state_dict"):
        raise Unrecognised(f"{code.module} has no {PUT}(model, peft_model_state_dict)")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Rename the keys that go in, and look at what did not find its place."""

    def put(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        model, state = MODEL.of(args, kwargs), STATE.of(args, kwargs)
        if not hasattr(model, "named_modules") or state is None:  # the call says itself what it lacks
            return original(*args, **kwargs)
        new = renamed(model, state)
        moved = [(old, key) for old, key in zip(state, new, strict=True) if old != key]
        if moved:
            old, key = moved[0]
            patch.warn("renamed", f"{len(moved)} adapter weights have old names: {old} is now {key}.")
            args, kwargs = STATE.replaced(args, kwargs, new)
        result = original(*args, **kwargs)
        lost = [key for key in getattr(result, "unexpected_keys", ()) if ".lora_" in key]
        check(patch, new, lost)
        return result

    patch.wrap(module, PUT, put)


def renamed(model: Any, state: dict[str, Any]) -> dict[str, Any]:
    """``state`` under the names that ``model`` has modules for."""
    rule = _rule(model.get_base_model() if hasattr(model, "get_base_model") else model)
    modules = {name for name, _ in model.named_modules()}
    found = {}
    for key, value in state.items():
        prefix = PREFIX if key.startswith(PREFIX) else ""
        new = prefix + rule(key.removeprefix(prefix))
        better = new != key and new not in state and _unknown(new, modules) < _unknown(key, modules)
        found[new if better else key] = value
    return found


def check(patch: Patch, state: dict[str, Any], lost: list[str]) -> None:
    """Say which adapter weights are in no module."""
    if not lost:
        return
    names = ", ".join(lost[:SHOWN]) + (", ..." if len(lost) > SHOWN else "")
    if len(lost) == sum(".lora_" in key for key in state):
        text = (
            f"nothing of this adapter was loaded, it is as a new one: no module is called {names}. "
            "It is of another model, or of a transformers that named its parts otherwise."
        )
        patch.warn("nothing", text)
    else:
        patch.warn(
            "lost", f"{len(lost)} adapter weights were not loaded, the model has no module for {names}."
        )


def _rule(base: Any) -> Callable[[str], str]:
    """How ``base`` renames a key of its own checkpoint; from transformers 5 on another module knows."""
    mapping = getattr(base, MAPPING, None)
    if mapping:
        return functools.partial(_first, mapping)
    known = importlib.util.find_spec(CONVERSIONS)
    if known is None or not _is_of_transformers(base):
        return str
    kinds = importlib.import_module("transformers.core_model_loading")
    every = importlib.import_module(CONVERSIONS).get_model_conversion_mapping(base)
    renamings = [each for each in every if isinstance(each, kinds.WeightRenaming)]
    return lambda key: str(kinds.rename_source_key(key, renamings, [])[0])


def _is_of_transformers(base: Any) -> bool:
    """Whether it is a model of transformers itself: a module around one may have its configuration."""
    return any(each.__name__ == "PreTrainedModel" for each in type(base).__mro__)


def _first(mapping: dict[str, str], key: str) -> str:
    for pattern, replacement in mapping.items():
        new, changes = re.subn(pattern, replacement, key)
        if changes:
            return new
    return key


def _unknown(key: str, modules: set[str]) -> int:
    """How many parts at the end of ``key`` are not of a module's name."""
    parts = key.split(".")
    known = (end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in modules)
    return len(parts) - next(known, 0)
