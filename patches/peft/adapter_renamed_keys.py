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
model renames those of its own checkpoint, if it has a module for the new name. An adapter of which no weight
finds a module is refused with the names, where PEFT or transformers loads it; a caller that puts weights in
itself, or calls PEFT's ``load_adapter``, has the answer in what PEFT returns. Else, and where some do not,
one warning names them.

Upstream: https://github.com/huggingface/transformers/pull/38627
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

PUT = "set_peft_model_state_dict"
MODEL, STATE = Argument(0, "model"), Argument(1, "peft_model_state_dict")
MAPPING = "_checkpoint_conversion_mapping"
CONVERSIONS = "transformers.conversion_mapping"
PREFIX = "base_model.model."
LIBRARIES = ("peft", "transformers")
ANSWERS = "load_adapter"  # of PEFT: it returns which keys found no place
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
        state = STATE.of(args, kwargs)
        new = renamed(MODEL.of(args, kwargs), state)
        moved = [(old, key) for old, key in zip(state, new, strict=True) if old != key]
        if moved:
            old, key = moved[0]
            patch.warn("renamed", f"{len(moved)} adapter weights have old names: {old} is now {key}.")
            args, kwargs = STATE.replaced(args, kwargs, new)
        result = original(*args, **kwargs)
        lost = [key for key in getattr(result, "unexpected_keys", ()) if ".lora_" in key]
        check(patch, new, lost, refuse=_is_left_to_a_library())
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


def _is_left_to_a_library() -> bool:
    """Whether PEFT or transformers was asked to load and the answer is not returned to who asked."""
    frame: Any = sys._getframe(1)
    while frame is not None and _package(frame) == "vlmpatch":
        frame = frame.f_back
    asked = None
    while frame is not None and _package(frame) in (*LIBRARIES, "vlmpatch"):
        asked, frame = frame, frame.f_back
    return asked is not None and not (_package(asked) == "peft" and asked.f_code.co_name == ANSWERS)


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def check(patch: Patch, state: dict[str, Any], lost: list[str], *, refuse: bool) -> None:
    """Say which adapter weights are in no module; ``refuse``: if all are, that is an error."""
    if not lost:
        return
    names = ", ".join(lost[:SHOWN]) + (", ..." if len(lost) > SHOWN else "")
    if refuse and len(lost) == sum(".lora_" in key for key in state):
        raise RuntimeError(
            f"vlmpatch [{patch.id}]: nothing of this adapter was loaded, no module is called {names}. "
            "It is an adapter of another model, or of a transformers that named its parts otherwise."
        )
    patch.warn("lost", f"{len(lost)} adapter weights were not loaded, the model has no module for {names}.")


def _rule(base: Any) -> Callable[[str], str]:
    """How ``base`` renames a key of its own checkpoint; from transformers 5 on another module knows."""
    mapping = getattr(base, MAPPING, None)
    if mapping:
        return functools.partial(_first, mapping)
    known = importlib.util.find_spec(CONVERSIONS)
    if known is None or not hasattr(base, "config"):
        return str
    kinds = importlib.import_module("transformers.core_model_loading")
    every = importlib.import_module(CONVERSIONS).get_model_conversion_mapping(base)
    renamings = [each for each in every if isinstance(each, kinds.WeightRenaming)]
    return lambda key: str(kinds.rename_source_key(key, renamings, [])[0])


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
