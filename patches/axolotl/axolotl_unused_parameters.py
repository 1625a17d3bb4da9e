"""axolotl tells DDP not to search for unused parameters where the configuration says nothing of it.

What the user sees: ``Expected to have finished reduction in the prior iteration`` in the second step when a
model with a vision tower is tuned on several GPUs (LLaVA never uses the last layer of its own), with
checkpointing or without it; of a run of one step nothing, and its ranks drift apart.

Why: the builder of the trainer passes ``bool(cfg.ddp_find_unused_parameters)``, and so a False that nobody
said, which transformers' Trainer takes for the user's own.

In every axolotl looked at, from 0.8.0 to 0.19.0. Under ``rl`` it passes nothing.

The change: where the configuration says nothing and the model trains a tower, or experts of which each is a
module, the Trainer is told nothing, and decides as it does elsewhere (``unused-under-checkpointing``). A
False or True in the YAML file, ``use_reentrant: true`` in it, a checkpointing that offloads, a dense text
model and what is frozen see no change.

Upstream: https://github.com/axolotl-ai-cloud/axolotl/blob/main/src/axolotl/core/builders/causal.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.unused_parts import is_reentrant, leaves_parts_unused

FORCED = "bool(self.cfg.ddp_find_unused_parameters)"
BUILDER, HOOK = "HFCausalTrainerBuilder", "hook_post_create_training_args"
NAME, CHECKPOINTING = "ddp_find_unused_parameters", "gradient_checkpointing"


def look(code: Code) -> str | None:
    """The builder must make a False of nothing said, and show what it made to its own hook."""
    build = code.function(f"{BUILDER}.build")
    if build is None or HOOK not in build:
        raise Unrecognised(f"there is no {BUILDER} that calls {HOOK}")
    return None if FORCED in build else f"axolotl leaves {NAME} alone here"


def apply(patch: Patch, module: ModuleType) -> None:
    """Take the False back where nothing was said and a step may leave a part unused."""

    def created(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        arguments = original(self, *args, **kwargs)
        silent = self.cfg.get(NAME) is None and getattr(arguments, NAME, None) is False
        if silent and _may_search(self.cfg, arguments, self.model):
            patch.replace(arguments, NAME, None)
        return arguments

    patch.wrap(getattr(module, BUILDER), HOOK, created)


def _may_search(cfg: Any, arguments: Any, model: Any) -> bool:
    checkpointing = cfg.get(CHECKPOINTING)
    if cfg.get("activation_offloading") or isinstance(checkpointing, str):  # axolotl's own, reentrant or not
        return False
    if checkpointing and is_reentrant(arguments, model):
        return False
    return leaves_parts_unused(model)
