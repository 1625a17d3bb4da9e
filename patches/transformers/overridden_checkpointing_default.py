"""A model's own ``gradient_checkpointing_enable`` chooses the reentrant variant when told nothing.

What the user sees: the failures of ``gradient-checkpointing-default``, on a model whose code (remote
code, mostly) overrides the method, whatever transformers is installed.

Why: such overrides were copied from transformers 4 and keep its ``{"use_reentrant": True}``.

Since transformers 4.35; transformers 6 is announced to drop the method's name.

The change: every override, of classes that exist and of classes to come, is told
``use_reentrant=False`` where the caller said nothing. Overrides without a parameter
``gradient_checkpointing_kwargs`` are left alone.

Upstream: https://github.com/huggingface/transformers/pull/43203
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised, signature

from .._shared.checkpoint_kwargs import say_non_reentrant

_METHOD = "gradient_checkpointing_enable"


def look(code: Code) -> str | None:
    """Models can override the method wherever ``PreTrainedModel`` has it."""
    methods = code.class_names("PreTrainedModel")
    if methods is None:
        raise Unrecognised(f"{code.module} has no class PreTrainedModel")
    return None if _METHOD in methods else f"PreTrainedModel has no {_METHOD} to override"


def apply(patch: Patch, module: ModuleType) -> None:
    """Wrap the overrides of today's subclasses, and of each new one when it is made."""
    base = module.PreTrainedModel

    def after_subclass(original: Any, cls: type, /, *args: Any, **kwargs: Any) -> None:
        original(cls, *args, **kwargs)
        if patch.active:
            _wrap_override(patch, cls)

    for cls in _subclasses(base):
        _wrap_override(patch, cls)
    patch.wrap(base, "__init_subclass__", after_subclass)


def _wrap_override(patch: Patch, cls: type) -> None:
    override = vars(cls).get(_METHOD)
    if inspect.isfunction(override) and _takes_kwargs(override):
        patch.wrap(cls, _METHOD, say_non_reentrant)


def _takes_kwargs(function: Any) -> bool:
    return list(signature(function).parameters)[1:2] == ["gradient_checkpointing_kwargs"]


def _subclasses(cls: type) -> list[type]:
    children: list[type] = cls.__subclasses__()
    return [found for child in children for found in (child, *_subclasses(child))]
