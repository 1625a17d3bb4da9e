"""``Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'``.

What the user sees: a script whose trainer builds its own accelerator ends before its first step, as
LLaVA-NeXT's does, which asks for accelerate 0.29.1 or newer and so gets the newest.

Why: what an accelerator is told of data loaders moved into ``DataLoaderConfiguration`` in accelerate 0.28,
and the arguments that had said it (``dispatch_batches``, ``even_batches``, ``use_seedable_sampler``) went
in 1.0.

Since accelerate 1.0.0.

The change: an accelerator that is told one of the three takes it as a part of ``dataloader_config``: the
caller's, copied, or a new one. ``split_batches`` is still an argument and goes where it went.

Upstream: https://github.com/huggingface/accelerate/pull/2441,
https://github.com/huggingface/accelerate/pull/3049
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

MOVED = ("dispatch_batches", "even_batches", "use_seedable_sampler")
PLACE = "dataloader_config"


def look(code: Code) -> str | None:
    """The constructor takes the configuration, and none of what moved into it."""
    constructor = code.function("Accelerator.__init__")
    if constructor is None:
        raise Unrecognised(f"{code.module} has no Accelerator.__init__")
    if PLACE not in constructor.parameters:
        return "Accelerator takes no dataloader_config yet"
    if not set(MOVED).isdisjoint(constructor.parameters):
        return "Accelerator still takes them itself"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Teach the constructor what it took before."""

    def taught(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        said = {name: kwargs.pop(name) for name in MOVED if name in kwargs}
        if said:
            words = ", ".join(f"{name}={value}" for name, value in said.items())
            patch.warn(
                "arguments", f"Accelerator({words}) should say {PLACE}=DataLoaderConfiguration({words})."
            )
            kwargs[PLACE] = configured(kwargs.get(PLACE) or module.DataLoaderConfiguration(), said)
        original(self, *args, **kwargs)

    patch.wrap(module.Accelerator, "__init__", taught)


def configured(configuration: Any, said: dict[str, Any]) -> Any:
    """A copy of ``configuration`` that says what was ``said``."""
    return dataclasses.replace(configuration, **said)
