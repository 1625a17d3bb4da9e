"""LoRA under FSDP1: an adapter is saved empty, and none is loaded; nothing is printed.

What the user sees: ``adapter_model.safetensors`` without a tensor, or with those outside of FSDP's units
alone.

Why: since 0.21 PEFT asks the modules which names belong to an adapter. Those of a unit of FSDP have
``_fsdp_wrapped_module.`` in the middle of their paths, which no name of a state has. Where an adapter is
loaded only the first rank has a state to compare with. Since 0.20 ``base_model.model.`` is taken away from
the names where no parameter's name begins with it, as under FSDP1. What then fits nowhere is left out, for
the adapter is loaded with ``strict=False``.

Since PEFT 0.20 (loading) and 0.21 (saving); 0.21.2 included.

The change: paths are compared without what FSDP puts into them, and what is loaded has the names that the
wrapped model has.

Left alone: models without a unit of FSDP1, and names that fit as they are.

Upstream: https://github.com/huggingface/peft/blob/v0.21.0/src/peft/tuners/tuners_utils.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.fsdp1_names import INSIDE, UNIT, has_units, state_names

PREFIXES, CLASS, REMAP = (
    "_get_tuner_state_dict_key_prefixes",
    "BaseTuner",
    "_remap_adapter_state_dict_for_load",
)
LOAD, MISMATCHED, STRIPPED = "set_peft_model_state_dict", "_find_mismatched_keys", "requires_prefix"
MODEL, STATE, ADAPTER = (
    Argument(0, "model"),
    Argument(1, "peft_model_state_dict"),
    Argument(2, "adapter_name"),
)
PEFT = "base_model.model."


def look(code: Code) -> str | None:
    """What belongs to an adapter must be asked of the modules, and a prefix taken away."""
    if code.module.endswith("tuners_utils"):
        if code.function(PREFIXES) is None:
            return "this PEFT knows the tensors of an adapter by their names"
        known = code.function(f"{CLASS}.{REMAP}") is not None
    else:
        function = code.function(LOAD)
        if function is not None and STRIPPED not in function:
            return "this PEFT takes nothing away"
        known = function is not None and code.function(MISMATCHED) is not None
    if not known:
        raise Unrecognised(f"{code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Compare names without what FSDP puts into them."""
    if hasattr(module, MISMATCHED):
        patch.wrap(module, MISMATCHED, find_mismatched_keys)
        return

    def remap(original: Callable[..., Any], cls: Any, /, *args: Any, **kwargs: Any) -> Any:
        loaded = original(cls, *args, **kwargs)
        model, adapter = MODEL.of(args, kwargs), ADAPTER.of(args, kwargs)
        return _remapped(loaded, cls, model, adapter, prefixes) if has_units(model) else loaded

    patch.wrap(module, PREFIXES, key_prefixes)
    prefixes = getattr(module, PREFIXES)
    patch.wrap(getattr(module, CLASS), REMAP, remap)


def key_prefixes(original: Callable[..., set[str]], /, *args: Any, **kwargs: Any) -> set[str]:
    """Around what finds the names that belong to an adapter."""
    found = original(*args, **kwargs)
    return found | {name.replace(INSIDE, "") for name in found}


def find_mismatched_keys(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Around what comes between the names as they are loaded and the loading."""
    model, state = MODEL.of(args, kwargs), STATE.of(args, kwargs)
    if UNIT in model._modules:
        known = {*state_names(model)}
        fitting = {f"{PEFT}{name}" if f"{PEFT}{name}" in known else name: state[name] for name in state}
        args, kwargs = STATE.replaced(args, kwargs, fitting)
    return original(*args, **kwargs)


def _remapped(loaded: Any, tuner: Any, model: Any, adapter: str, prefixes: Callable[..., set[str]]) -> Any:
    """``loaded`` by the names of ``model``, on ranks that were not told its state too."""
    exact = prefixes(model, adapter_name=adapter)
    under = tuple(f"{prefix}." for prefix in exact)
    own = [name for name in state_names(model) if name in exact or name.startswith(under)]
    fitting = {tuner._remove_adapter_name_from_key(name, adapter): name for name in own}
    return {fitting.get(name, name): value for name, value in loaded.items()}
