"""Under FSDP a checkpoint in shards that is the best is not known for it, and another is loaded at the end.

What the user sees: nothing. With ``load_best_model_at_end`` the training ends with the weights of an earlier
checkpoint, the best before, or with those of the last step, where the best one was the last that was saved or
the best of all came after another. Or it hangs after ``Training completed``, for ranks do not agree.

Why: every rank asks whether the best checkpoint's folder exists once the model is saved. Where FSDP saves
shards (``SHARDED_STATE_DICT``, the default of its second version) the model is saved with the optimizer,
after that question: there is no folder yet, save for a rank that asks so late that another has made it since.

Since transformers 4.50.0, to this day. 4.57, where ranks wait before they ask, ended it for DDP alone.

The change: the folder is made before the question, by every rank, as each does a moment later to save its
state of random numbers. Where no more than the model is saved nothing is done.

Upstream: https://github.com/huggingface/transformers/pull/40923, which has ranks wait
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

SAVES, ASKS = "Trainer._save_checkpoint", "if os.path.exists(best_checkpoint_dir):"
MODEL, WHOLE = "Trainer.save_model", '"FULL_STATE_DICT" in str('
PLACE, INTERNAL = Argument(0, "output_dir"), Argument(1, "_internal_call")


def look(code: Code) -> str | None:
    """A checkpoint's model must be saved whole or not at all, before its folder is looked for."""
    saves, model = code.function(SAVES), code.function(MODEL)
    if saves is None or model is None:
        raise Unrecognised(f"{code.module} has no {MODEL if saves else SAVES}")
    if ASKS not in saves:
        return "the best checkpoint is not looked for as it is saved"
    return (
        None
        if WHOLE in model
        else "a model is saved in shards, too, before the best checkpoint is looked for"
    )


def apply(patch: Patch, module: ModuleType) -> None:
    """Make a checkpoint's folder as it begins."""

    def save_model(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        place = PLACE.of(args, kwargs)
        if INTERNAL.of(args, kwargs) and place and self.is_fsdp_enabled and not self.args.save_only_model:
            os.makedirs(place, exist_ok=True)
        return original(self, *args, **kwargs)

    patch.wrap(module.Trainer, "save_model", save_model)
