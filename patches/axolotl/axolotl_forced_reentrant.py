"""axolotl sets ``use_reentrant=True`` for a configuration that says nothing.

What the user sees: ``Expected to mark a variable ready only once`` with LoRA on several GPUs and
``ddp_find_unused_parameters: true``, though ``use_reentrant`` stands nowhere in the YAML file.

Why: ``normalize_config`` fills ``gradient_checkpointing_kwargs`` in, with the variant that was torch's
default once. Under ``rl`` it fills nothing in, and the non-reentrant variant is taken.

In every axolotl looked at, from 0.8.0 to 0.19.0.

The change: what it filled in becomes ``use_reentrant=False``. A user's own choice stands, and so does
everything else that ``normalize_config`` writes there.

Upstream: https://github.com/axolotl-ai-cloud/axolotl/blob/main/src/axolotl/utils/config/__init__.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

FORCED = 'cfg.gradient_checkpointing_kwargs = {"use_reentrant": True}'
_KWARGS = "gradient_checkpointing_kwargs"


def look(code: Code) -> str | None:
    """``normalize_config`` must fill it in."""
    function = code.function("normalize_config")
    if function is None:
        raise Unrecognised("there is no normalize_config")
    return None if FORCED in function else "axolotl leaves use_reentrant alone here"


def apply(patch: Patch, module: ModuleType) -> None:
    """Fill in the other variant where nothing was said."""

    def normalize(original: Callable[..., Any], /, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        silent = cfg.get(_KWARGS) is None
        result = original(cfg, *args, **kwargs)
        if silent and cfg.get(_KWARGS) == {"use_reentrant": True}:
            patch.set_item(cfg, _KWARGS, {"use_reentrant": False})
        return result

    patch.wrap(module, "normalize_config", normalize)
