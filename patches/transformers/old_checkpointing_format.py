"""``object has no attribute '_gradient_checkpointing_func'``, or checkpointing that is not on.

What the user sees: remote code from before transformers 4.35 (VLMs around a language model or a tower of
transformers' own) ends in its first forward with that error, or trains without checkpointing and runs out of
memory. A warning says that the format is old and ``gradient_checkpointing_kwargs`` are ignored.

Why: such code overrides ``_set_gradient_checkpointing(self, module, value)``, which sets the flag on modules
and nothing else. From 4.35 on, transformers' own modules call the function that was set beside the flag, and
from 4.53 on it is their layers that have the flag.

Since transformers 4.35.

The change: what the override has switched on stays on. Inside it, modules that are transformers' own get the
flag and the function, made of what the caller said about ``use_reentrant``, or non-reentrant. The remote
code's own modules are left to it.

Upstream: https://github.com/xfactlab/orpo/issues/9, https://github.com/huggingface/transformers/pull/27020
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised, signature

FLAG, FUNCTION = "gradient_checkpointing", "_gradient_checkpointing_func"
_OLD = '"value" in inspect.signature(self._set_gradient_checkpointing)'
# The first of each from transformers 5.23 on.
_ON = ("_activation_checkpointing_enable", "gradient_checkpointing_enable")
_OFF = ("_activation_checkpointing_disable", "gradient_checkpointing_disable")


def look(code: Code) -> str | None:
    """The old format must be taken, without a word to what else it needs."""
    if _OLD not in code.source:
        raise Unrecognised("PreTrainedModel does not take the old format as it did")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Finish what an override has begun."""

    def enable(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if is_old(self):
            said = next((value for value in (*args, *kwargs.values()) if isinstance(value, dict)), {})
            checkpoint = functools.partial(module.checkpoint, **{"use_reentrant": False, **said})
            for part in unfinished(self):
                patch.replace(part, FUNCTION, checkpoint)
                patch.replace(part, FLAG, True)
        return result

    def disable(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if is_old(self):
            for part in filter(_is_own, self.modules()):
                if getattr(part, FLAG) is True:
                    patch.replace(part, FLAG, False)
        return result

    for names, wrapper in ((_ON, enable), (_OFF, disable)):
        entry = next(name for name in names if hasattr(module.PreTrainedModel, name))
        patch.wrap(module.PreTrainedModel, entry, wrapper)


def is_old(model: Any) -> bool:
    """Whether the model's code switches checkpointing as it was done before 4.35."""
    return "value" in signature(model._set_gradient_checkpointing).parameters


def unfinished(model: Any) -> list[Any]:
    """Modules of transformers' own, inside what is switched on, that lack the flag or the function."""
    found = {
        part: None
        for module in model.modules()
        if getattr(module, FLAG, None) is True
        for part in filter(_is_own, module.modules())
    }
    return [part for part in found if not (getattr(part, FLAG) is True and hasattr(part, FUNCTION))]


def _is_own(module: Any) -> bool:
    return str(type(module).__module__).startswith("transformers.") and hasattr(module, FLAG)
