"""``'NoneType' object has no attribute 'eos_token_id'``, from ms-swift 3.6.0.

What the user sees: SFT or DPO of a model whose code is not transformers' own (MiniCPM-V-2.6, MiniCPM-o) ends
while the trainer is made.

Why: the release adds a template's stop words to ``model.generation_config``. From transformers 4.50 on a
model that does not name ``GenerationMixin`` has none: the attribute is there and is None.

Since ms-swift 3.6.0, until 3.6.1, which asks first.

The change: without a generation configuration there is nothing to add to.

Upstream: https://github.com/modelscope/ms-swift/issues/6204 (such models in later releases)
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

NAME = "update_generation_config_eos_token"


def look(code: Code) -> str | None:
    """The function must use the configuration without asking whether there is one."""
    function = code.function(NAME)
    if function is None:
        return "this ms-swift does not add stop words to a generation configuration"
    return (
        "it asks whether there is a generation configuration"
        if "generation_config is None" in function
        else None
    )


def apply(patch: Patch, module: ModuleType) -> None:
    """Leave alone what is not there."""

    def update(original: Callable[..., None], /, generation_config: Any, *args: Any, **kwargs: Any) -> None:
        if generation_config is not None:
            original(generation_config, *args, **kwargs)

    patch.wrap(module, NAME, update)
