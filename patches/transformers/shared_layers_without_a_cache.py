"""Gemma 3n and Gemma 4's E-series train another function than the one that generates: no layer shares.

What the user sees: nothing. The training loss is not the evaluation loss of the same weights (4.129 and 4.158
of a small Gemma 3n), gradients are 188 % off (242 % of a small Gemma 4), and weights are trained that
generation never uses.

Why: the last layers take keys and values of earlier ones, and find them in the cache. Up to transformers 4.57
there is none in training; from 5.0 on a checkpointed layer drops it, and ``use_cache=False`` makes none. A
layer that finds no cache makes keys and values by weights of its own.

Since transformers 4.53; Gemma 4 hands them over beside the cache from 5.5.2 on, Gemma 3n from 5.6. Where in
the cache they are looked for changed in 4.54 and in 4.56.

The change: where a layer is given no cache, it gets a register of this forward, which holds what shared
layers take and nothing else. A layer that is computed again in the backward gets that of its forward. An
explicit ``use_reentrant=True`` cannot reach a tensor inside a register: such layers take the non-reentrant
variant, said once. What a layer that shares has for keys and values of its own gets a gradient of zero where
DDP waits for one, which is none again after the backward. Where there is a cache nothing else changes. Run
on 4.53.3, 4.54.1, 4.55.4, 4.56.2, 4.57.6, 5.2.0 and 5.5.0.

Upstream: https://github.com/huggingface/transformers/issues/45242,
https://github.com/huggingface/transformers/pull/45312
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.blank_image import add_nothing
from .._shared.missing_gradients import from_nothing
from .._shared.training_group import running_ddp

CACHES, FUNCTION = ("past_key_values", "past_key_value"), "_gradient_checkpointing_func"
WRAPPED = "_fsdp_wrapped_module"  # a unit of FSDP1 hands on what is read from it, not what is written to it
SHARED = "[self.kv_shared_layer_index]"
PLACES = ("shared_layers", f"past_key_value.layers{SHARED}", f"past_key_value.key_cache{SHARED}")
_REENTRANT = (
    "use_reentrant=True was passed, and keys that layers share get no gradient through it. This run uses "
    "the non-reentrant variant. Pass False; VLMPATCH_DISABLE={patch} insists on True."
)


class Register:
    """What stands in for a cache in one forward: nothing is appended to anything.

    Args:
        taken: the layers of which others take the keys and values.
    """

    def __init__(self, taken: Collection[int]) -> None:
        self._taken = taken
        self.shared_layers = _OfTheForward()  # what attention puts in by itself, from 4.56 on
        self.layers = _OfTheForward()  # 4.54 and 4.55
        self.key_cache, self.value_cache = _OfTheForward(), _OfTheForward()  # 4.53

    def update(self, keys: Any, values: Any, layer: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """As a cache that held nothing."""
        if layer in self._taken:
            self.layers[layer] = SimpleNamespace(keys=keys, values=values)
            self.key_cache[layer], self.value_cache[layer] = keys, values
        return keys, values


class _OfTheForward(dict[int, Any]):
    """Keeps what a forward puts in; what a recomputation makes is the same again."""

    def __setitem__(self, layer: int, states: Any) -> None:
        import torch

        if torch._C._current_graph_task_id() == -1:
            super().__setitem__(layer, states)


_running = threading.local()


def look(code: Code) -> str | None:
    """Shared layers must find what they share in the cache."""
    model, attention = (code.function(f"{name}.forward") for name in _classes(code.module))
    if attention is None or model is None:
        raise Unrecognised(f"{code.module} has no {' or '.join(_classes(code.module))}")
    if not any(place in attention for place in PLACES):
        return "layers share their keys beside the cache"
    return None


def _classes(module: str) -> tuple[str, str]:
    """The text model and its attention, as ``modeling_gemma3n`` names them."""
    family = module.rpartition("modeling_")[2].capitalize()
    return f"{family}TextModel", f"{family}TextAttention"


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand a register to every layer that gets no cache."""

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        shares = (getattr(layer.self_attn, "kv_shared_layer_index", None) for layer in self.layers)
        register = Register({layer for layer in shares if layer is not None})
        with contextlib.ExitStack() as swapped:
            for each in self.layers:
                layer = getattr(each, WRAPPED, each)
                if getattr(layer, "gradient_checkpointing", False) and self.training:
                    checkpoint = functools.partial(_checkpoint, patch, register, getattr(layer, FUNCTION))
                    swapped.enter_context(patch.swapped(layer, FUNCTION, checkpoint))
            with _within(register):
                return original(self, *args, **kwargs)

    model, attention = _classes(module.__name__)
    patch.wrap(getattr(module, model), "forward", forward)
    patch.wrap(getattr(module, attention), "forward", _attend)


def _attend(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    register = getattr(_running, "register", None)
    cache = next((name for name in CACHES if name in kwargs), None)
    if register is not None and cache and kwargs[cache] is None:
        kwargs[cache] = register
    output, *rest = original(self, *args, **kwargs)
    if getattr(self, "is_kv_shared_layer", False) and (unused := _unused(self)):
        output = add_nothing(output, unused, functools.partial(from_nothing, unused, dropped=True))
    return (output, *rest)


def _unused(attention: Any) -> list[Any]:
    """What a layer that shares has for keys and values of its own, if DDP waits for its gradients."""
    named = attention.named_parameters()
    own = [p for name, p in named if name.startswith(("k_", "v_")) and p.requires_grad]
    return own if own and running_ddp(own) is not None else []


@contextlib.contextmanager
def _within(register: Register) -> Iterator[None]:
    outer = getattr(_running, "register", None)
    _running.register = register
    try:
        yield
    finally:
        _running.register = outer


def _checkpoint(
    patch: Patch, register: Register, checkpoint: Any, run: Callable[..., Any], *args: Any
) -> Any:
    """``checkpoint`` of a layer, whose recomputation finds ``register`` too."""
    said = getattr(checkpoint, "keywords", {})
    if said.get("use_reentrant") is True:
        patch.warn("reentrant", _REENTRANT.format(patch=patch.id))
        checkpoint = functools.partial(checkpoint.func, *checkpoint.args, **{**said, "use_reentrant": False})

    def again(*inputs: Any) -> Any:
        with _within(register):
            return run(*inputs)

    return checkpoint(again, *args)
