"""``Could not find the transformer layer class SiglipMultiheadAttentionPoolingHead in the model.``

What the user sees: FSDP by HF Trainer or accelerate, wrapped by transformer class, with no class named in the
configuration, ends before the first step; by PEFT, for an adapter under FSDP1, with ``Could not find the
transformer layer class to wrap in the model.``

Why: what is wrapped by default is ``model._no_split_modules``, which was written for ``device_map``: names of
classes, some of which belong to a part that this model is without (the text half of a CLIP or SigLIP whose
vision half it has, the pooling head that its tower leaves out), or to no class of the release at all. One
name that is not found ends the run.

Since accelerate fell back on that list: LLaVA with transformers 4.45, Gemma 3 and Idefics3 with 4.57; with
5.23 every model whose tower is CLIP or SigLIP, LLaVA among them.

The change: of that default, the names that the model has are taken; where it has none of them, those that
the models inside it name. A name that the user gave ends the run as it did.

Upstream: https://github.com/huggingface/transformers/issues/37672,
https://github.com/verl-project/verl/issues/4950
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

ACCELERATE = "FullyShardedDataParallelPlugin.set_auto_wrap_policy"
PEFT, PEFT_NAMES = "fsdp_auto_wrap_policy", "_get_no_split_modules"
DEFAULT = "_no_split_modules"


def look(code: Code) -> str | None:
    """The default must be the model's list, and a name that is not found an error."""
    function = code.function(PEFT if code.module.startswith("peft") else ACCELERATE)
    if function is None:
        raise Unrecognised(f"{code.module} makes no policy of wrapping by class")
    if "Could not find the transformer layer class" not in function:
        return "this release passes over a class that the model does not have"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let the default be what the model has."""

    def of_this_model(original: Callable[..., Any], /, model: Any) -> Any:
        names = original(model)
        return type(names)(_present(model, names)) if names else names

    def by_class(original: Callable[..., Any], self: Any, /, model: Any) -> Any:
        with _said_by(patch, model):
            return original(self, model)

    def adapter(original: Callable[..., Any], /, model: Any) -> Any:
        with _said_by(patch, model):
            return original(model)

    if hasattr(module, PEFT_NAMES):
        patch.wrap(module, PEFT_NAMES, of_this_model)
    elif hasattr(module, PEFT):
        patch.wrap(module, PEFT, adapter)
    else:
        patch.wrap(module.FullyShardedDataParallelPlugin, "set_auto_wrap_policy", by_class)


def _said_by(patch: Patch, model: Any) -> contextlib.AbstractContextManager[None]:
    """Within it the model's list has the names that it has."""
    names = getattr(model, DEFAULT, None)
    present = _present(model, names) if names else []
    if not present or present == list(names or ()):
        return contextlib.nullcontext()
    return patch.swapped(model, DEFAULT, present)


def _present(model: Any, names: Any) -> list[str]:
    """Those of ``names`` that are classes in the model; where none is, those that its parts name."""
    known = {type(part).__name__ for part in model.modules()}
    inner = {name for part in model.modules() for name in getattr(part, DEFAULT, None) or ()}
    return [name for name in names if name in known] or sorted(inner & known) or list(names)
