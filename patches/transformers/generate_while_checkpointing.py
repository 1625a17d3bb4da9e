"""``generate()`` of a model that is being trained with checkpointing fails, or produces nonsense.

What the user sees: in GRPO, RLOO or an evaluation without ``model.eval()``, ``The shape of the mask [1406]
at index 0 does not match the shape of the indexed tensor [1405]``, ``size of tensor a (61) must match … b
(62)``; or only the warning ``Caching is incompatible with gradient checkpointing``, and completions that are
garbage, on which the training then goes on.

Why: a checkpointed model in training mode drops the cache it is given, and ``generate()`` does not know: it
goes on feeding the last token alone. And a user who trains with checkpointing says ``use_cache=False`` in the
model's configuration, as TRL does by itself. Without a cache, a rank that under ZeRO-3 waits for others to
finish is fed a mask one longer than its tokens.

The first in transformers 4.45 to 4.47 and since 4.53; from 5.24 on a layer keeps its cache where no gradient
is recorded, but GPT-2 hands its layers none. The second until 5.0, whose ``_sample`` says how many tokens
are new.

The change: while ``generate()`` runs, the checkpointing flags of the model and of all that is in it are off.
Nothing is kept for a backward there, so nothing is lost. They are on again when the last of several calls,
nested or in other threads, has ended, by an exception too. Where ranks wait for each other, a model that is
being trained uses the cache unless the call was told not to. A model that is not trained is left alone.

Upstream: https://github.com/EvolvingLMMs-Lab/open-r1-multimodal/issues/8
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, NamedTuple

from vlmpatch.api import Argument, Code, Patch, Unrecognised, of_module

FLAG = "gradient_checkpointing"
CONFIG = Argument(1, "generation_config")


def look(code: Code) -> str | None:
    """The bug is here while ``generate`` knows nothing of checkpointing."""
    function = code.function("GenerationMixin.generate")
    if function is None:
        raise Unrecognised("GenerationMixin has no generate")
    if FLAG in function or "activation_checkpointing" in function:
        return "generate() minds checkpointing itself"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Switch the flags off around every ``generate()``."""
    import torch

    flags = _Flags(patch)
    sample = of_module(module).function("GenerationMixin._sample")
    mask_too_long = sample is not None and "next_sequence_length" not in sample

    def generate(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, torch.nn.Module):  # a runtime of another kind, such as ONNX's
            return original(self, *args, **kwargs)
        with flags.off(self) as trained:
            if trained and mask_too_long and not _decided(args, kwargs) and _ranks_wait(module, self, kwargs):
                kwargs["use_cache"] = True
            return original(self, *args, **kwargs)

    with_gradients = getattr(module.GenerationMixin.generate, "__wrapped__", None)
    patch.wrap(module.GenerationMixin, "generate", generate)
    if with_gradients is not None:
        # Who calls ``generate.__wrapped__`` is after gradients, and wants what lies under no_grad().
        patch.replace(module.GenerationMixin.generate, "__wrapped__", with_gradients)


def _decided(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call itself says that no cache is to be used, or which one."""
    config = CONFIG.of(args, kwargs)
    named = ("use_cache", "past_key_values", "cache", "cache_implementation")
    return any(name in kwargs for name in named) or getattr(config, "use_cache", None) is False


def _ranks_wait(module: ModuleType, model: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a rank that has finished goes on until all have."""
    said: bool | None = kwargs.get("synced_gpus")
    if said is not None:
        return said
    sharded = getattr(module, "is_fsdp_managed_module", None)
    return bool(module.is_deepspeed_zero3_enabled() or (sharded is not None and sharded(model)))


def _checkpoints(module: Any) -> bool:
    """Whether its flag is on; a property of that name, of a module of the script's own, is not asked."""
    return vars(module).get(FLAG, getattr(type(module), FLAG, None)) is True


class _Held(NamedTuple):
    swapped: AbstractContextManager[None]
    users: int


class _Flags:
    """Which modules' flags are off now, and for how many calls of ``generate()``."""

    def __init__(self, patch: Patch) -> None:
        self._patch = patch
        self._held: dict[Any, _Held] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def off(self, model: Any) -> Iterator[bool]:
        """The flags are off inside; yields whether ``model`` is being trained."""
        trained = model.training or any(map(_checkpoints, model.modules()))
        taken: list[Any] = []
        try:
            with self._lock:
                for module in model.modules():
                    if module in self._held or (module.training and _checkpoints(module)):
                        taken.append(module)
                        self._take(module)
            yield trained
        finally:
            with self._lock:
                for module in taken:
                    self._give_back(module)

    def _take(self, module: Any) -> None:
        held = self._held.get(module)
        if held is None:
            held = _Held(self._patch.swapped(module, FLAG, False), 0)
            held.swapped.__enter__()
        self._held[module] = held._replace(users=held.users + 1)

    def _give_back(self, module: Any) -> None:
        held = self._held.pop(module)
        if held.users > 1:
            self._held[module] = held._replace(users=held.users - 1)
        else:
            held.swapped.__exit__(None, None, None)
