"""``'MiniCPMV' object has no attribute 'all_tied_weights_keys'``.

Why: from 5.0, transformers collects what it needs to load a model in ``post_init()``, which a model is
meant to call at the end of its ``__init__``. The remote code of MiniCPM-V and MiniCPM-o never did.

Since transformers 5.0.0rc0.

The change: ``post_init()`` is called after the model's ``__init__``, where the model did not do it.

Upstream: https://github.com/huggingface/transformers/issues/43883
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.minicpmv import NOT_THE_MODEL, model_class, model_name


def look(code: Code) -> str | None:
    """The class's own ``__init__`` must lack the call."""
    name = model_name(code)
    if name is None:
        return NOT_THE_MODEL
    function = code.function(f"{name}.__init__")
    if function is not None and "post_init()" in function:
        return f"{name}.__init__ calls post_init() itself"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Call ``post_init()`` for the class."""

    def then_post_init(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not hasattr(self, "all_tied_weights_keys"):
            self.post_init()
            name = type(self).__name__
            patch.warn("called", f"{name}.__init__ in {_file(module)} should end with self.post_init().")

    patch.wrap(model_class(module), "__init__", then_post_init)


def _file(module: ModuleType) -> str:
    return f"{module.__name__.rpartition('.')[2]}.py"
