"""``_get_train_sampler() takes 1 positional argument but 2 were given``.

What the user sees: LLaVA's, LLaVA-NeXT's, TinyLLaVA's, InternVL's, VLM-R1's or lmms-finetune's script, or any
other whose Trainer has a ``_get_train_sampler(self)`` of its own, ends before its first step.

Why: from 4.52 on the Trainer hands the data set to ``_get_train_sampler``.

Since transformers 4.52.0.

The change: an overridden ``_get_train_sampler`` that can take no data set is called without it; what it reads
is ``self.train_dataset``, which is the one handed over. Recognised by the signature when a trainer is built.

Upstream: https://github.com/huggingface/transformers/pull/38090, https://github.com/hiyouga/LlamaFactory/issues/8207
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, signature

NAME = "_get_train_sampler"


def look(code: Code) -> str | None:
    """The Trainer must hand the data set on."""
    function = code.function("Trainer._get_dataloader")
    if function is None or "sampler_fn(dataset)" not in function:
        return "Trainer hands no data set to _get_train_sampler"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Look at the class of every trainer that is built."""

    def without_dataset(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:  # a call of the user's own hands over no data set, and hears nothing
            return original(self, *args, **kwargs)
        name = type(self).__qualname__
        patch.warn(name, f"{name}.{NAME} should take train_dataset=None.")
        return original(self)

    def construct(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        cls = type(self)
        owner = next(base for base in cls.__mro__ if NAME in vars(base))
        sampler = vars(owner)[NAME]
        method = isinstance(sampler, FunctionType)  # what is static, or bound otherwise, is called as it was
        if method and not takes_dataset(sampler):
            patch.wrap(owner, NAME, without_dataset)

    patch.wrap(module.Trainer, "__init__", construct)


def takes_dataset(method: Any) -> bool:
    """Whether ``method``, called as a bound one, can be handed a data set; what decorates it may drop it."""
    try:
        signature(method, follow_wrapped=False).bind("self", "train_dataset")
    except TypeError:
        return False
    except ValueError:
        return True  # it cannot be told: left alone
    return True
