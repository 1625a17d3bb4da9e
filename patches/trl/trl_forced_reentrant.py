"""TRL sets ``use_reentrant=True`` for PEFT with ZeRO-3, whatever the user said.

What the user sees: under ZeRO-3 a LoRA training is slower than it need be and its vision tower may not
train at all; ``use_reentrant=False`` gets a warning that it was overruled.

Why: non-reentrant checkpointing of frozen parameters failed under ZeRO-3 (``CheckpointError``), so TRL
took the other variant there, from 0.28.0 on, in the SFT trainer and later in all of them.

What is done: while a trainer is constructed, what the user chose for ``use_reentrant``, or the
non-reentrant default, cannot be overwritten with True. A user's own True stands. Only where the patch
zero3-recompute-release, which ends that failure, is available.

Upstream: https://github.com/huggingface/trl/issues/2514, https://github.com/deepspeedai/DeepSpeed/pull/8148
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, signature

FORCED = 'args.gradient_checkpointing_kwargs["use_reentrant"] = True'
KEY = "use_reentrant"
_KWARGS = "gradient_checkpointing_kwargs"


def look(code: Code) -> str | None:
    """A trainer of the module must force it."""
    return None if FORCED in code.source else "TRL leaves use_reentrant alone here"


def apply(patch: Patch, module: ModuleType) -> None:
    """Guard the setting while a trainer of this module is constructed."""

    def construct(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        # Not bound: what a layer below or the constructor makes of another name is theirs to say.
        placed = dict(zip(signature(original).parameters, (self, *args), strict=False))
        given: Any = {**placed, **kwargs}.get("args")
        if not (hasattr(given, _KWARGS) and _frozen_parameters_work()):
            return original(self, *args, **kwargs)
        chosen = given.gradient_checkpointing_kwargs or {}
        if chosen.get(KEY):
            return original(self, *args, **kwargs)
        guard = _Guarded({**chosen, KEY: False})
        with patch.swapped(given, _KWARGS, guard):
            original(self, *args, **kwargs)
            stands = given.gradient_checkpointing_kwargs is guard
        if stands:
            patch.replace(given, _KWARGS, dict(guard))

    for name, value in list(vars(module).items()):
        own = isinstance(value, type) and value.__module__ == module.__name__
        if own and name.endswith("Trainer") and "__init__" in vars(value):
            patch.wrap(value, "__init__", construct)


def _frozen_parameters_work() -> bool:
    import vlmpatch

    try:
        vlmpatch.require("zero3-recompute-release")
    except vlmpatch.PatchError:
        return False
    return True


class _Guarded(dict[str, Any]):
    """Takes no ``use_reentrant=True``, and does not say False, of which TRL would warn."""

    def __setitem__(self, name: str, value: Any) -> None:
        if not (name == KEY and value):
            super().__setitem__(name, value)

    def get(self, name: str, default: Any = None) -> Any:
        return None if name == KEY else super().get(name, default)
