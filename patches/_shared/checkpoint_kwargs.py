"""What callers of ``gradient_checkpointing_enable`` said, and what is filled in for them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

# The sink through which every model of transformers gets its checkpoint function.
_SINK = "_set_gradient_checkpointing"
_SAID = Argument(0, "gradient_checkpointing_kwargs")


def say_non_reentrant(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call ``original`` with ``use_reentrant=False`` unless the caller named ``use_reentrant``."""
    said = _SAID.of(args, kwargs) or {}
    if isinstance(said, dict) and "use_reentrant" not in said:
        args, kwargs = _SAID.replaced(args, kwargs, {"use_reentrant": False, **said})
    return original(self, *args, **kwargs)


def look_at_sink(code: Code) -> None:
    """Raises ``Unrecognised`` unless models get their checkpoint function the way we know."""
    function = code.function(f"PreTrainedModel.{_SINK}")
    if function is None or "gradient_checkpointing_func" not in function.parameters:
        raise Unrecognised(f"PreTrainedModel.{_SINK} takes no gradient_checkpointing_func")


def on_reentrant(patch: Patch, module: ModuleType, then: Callable[[Any], None]) -> None:
    """Call ``then(model)`` after a model was given ``partial(checkpoint, use_reentrant=True)``."""

    def after_set(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if _says_reentrant(kwargs.get("gradient_checkpointing_func")):
            then(self)
        return result

    patch.wrap(module.PreTrainedModel, _SINK, after_set)


def _says_reentrant(function: Any) -> bool:
    # LLaMA-Factory puts a function of its own around the partial.
    layers = [function]
    while (inner := getattr(layers[-1], "__wrapped__", None)) is not None and inner not in layers:
        layers.append(inner)
    return any(getattr(layer, "keywords", {}).get("use_reentrant") is True for layer in layers)
