"""Prefix tuning, checkpointing enabled afterwards: the prefix never trains.

What the user sees: nothing but ``Caching is incompatible with gradient checkpointing``, and a prefix whose
gradient is None; ``element 0 of tensors does not require grad``; on transformers 5 ``The size of tensor a (9)
must match the size of tensor b (13)``.

Why: PEFT hands the prefix to the model as its cache, and a checkpointed layer drops the cache. PEFT refuses a
model that checkpoints already, and does not hear of ``gradient_checkpointing_enable()`` (the Trainer's too)
after ``get_peft_model()``.

Since transformers 4.53, whose layers drop the cache (before it they kept PEFT's, or died of its form);
5.23 with PEFT 0.21 has it still.

The change: where PEFT makes the prefix for a training forward, the layers that checkpoint keep a cache that
is a prefix; what the recomputation appends to it is handled by the patch cache-in-recompute, without which
this one does nothing. An explicit ``use_reentrant=True`` cannot reach a tensor inside a cache: such layers
take the non-reentrant variant, said once. Encoder-decoders are left alone, and so is every other cache.

Upstream: https://github.com/huggingface/peft/issues/869
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.by_identity import ByIdentity

NAME = "PeftModel.get_prompt"
KEEPS = "_can_checkpoint_with_cache"  # what a layer says that keeps its cache, from transformers 5 on
FUNCTION = "_gradient_checkpointing_func"
CACHE = "past_key_values"
_REENTRANT = (
    "use_reentrant=True was passed, and a prefix gets no gradient through it. This run uses the "
    "non-reentrant variant. Pass False; VLMPATCH_DISABLE={patch} insists on True."
)

_prefixes = ByIdentity()  # caches that PEFT made for layers that checkpoint


def look(code: Code) -> str | None:
    """PEFT must make prompts in one place, and refuse prefixes for a model that checkpoints already."""
    if code.function(NAME) is None:
        raise Unrecognised(f"{code.module} has no {NAME}")
    if "does not work with gradient checkpointing" not in code.source:
        return "PEFT does not hand a prefix over as a cache here"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let layers keep what PEFT made as a prefix."""
    import torch

    def prompt(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        if type(made).__name__ == "DynamicCache" and self.training and torch.is_grad_enabled():
            layers = [layer for layer in self.get_base_model().modules() if _checkpoints(layer)]
            if layers and _recomputes_with_a_cache():
                _prefixes.put(made, True)
                _keep(patch, layers)
        return made

    patch.wrap(module.PeftModel, "get_prompt", prompt)


def _checkpoints(layer: Any) -> bool:
    own = any(base.__name__ == "GradientCheckpointingLayer" for base in type(layer).__mro__)
    return own and bool(layer.gradient_checkpointing) and hasattr(layer, FUNCTION)


def _recomputes_with_a_cache() -> bool:
    import vlmpatch

    try:
        vlmpatch.require("cache-in-recompute")
    except vlmpatch.PatchError:
        return False
    return True


def _keep(patch: Patch, layers: list[Any]) -> None:
    for layer in layers:
        checkpoint = getattr(layer, FUNCTION)
        if getattr(checkpoint, "keywords", {}).get("use_reentrant") is True:
            patch.warn("reentrant", _REENTRANT.format(patch=patch.id))
            said = {**checkpoint.keywords, "use_reentrant": False}
            patch.replace(layer, FUNCTION, functools.partial(checkpoint.func, *checkpoint.args, **said))
    if hasattr(layers[0], KEEPS):
        for layer in layers:
            if not getattr(layer, KEEPS):
                patch.replace(layer, KEEPS, True)
        return
    base = next(base for base in type(layers[0]).__mro__ if base.__name__ == "GradientCheckpointingLayer")
    patch.wrap(base, "__call__", _keeping(patch))


def _keeping(patch: Patch) -> Callable[..., Any]:
    """Around the call of a layer that drops its cache: one that is a prefix reaches the forward."""

    def call(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get(CACHE)
        if cache is None or not _prefixes.get(cache) or not (self.gradient_checkpointing and self.training):
            return original(self, *args, **kwargs)
        checkpoint = getattr(self, FUNCTION)

        def with_prefix(run: Callable[..., Any], *inputs: Any) -> Any:
            return checkpoint(functools.partial(run, **{CACHE: cache}), *inputs)

        with patch.swapped(self, FUNCTION, with_prefix):
            return original(self, *args, **{**kwargs, CACHE: None})

    return call
