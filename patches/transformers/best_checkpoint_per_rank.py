"""Ranks do not agree on the best checkpoint, and only some load it at the end.

What the user sees: a training with ``load_best_model_at_end`` that is over, and hangs after
``Training completed`` until the watchdog ends it; or, less often, ranks that go on with weights of different
checkpoints, and an evaluation of none of them.

Why: every rank asks whether the best checkpoint's folder exists, right after rank 0 has begun to write it
and without waiting for it. A rank that comes too early keeps the checkpoint that was the best before, or
none, and one that knows none passes by the barrier in front of the loading.

Since transformers 4.50.0, until 4.57.0, where the ranks wait before they ask.

The change: after a save, a rank that does not save itself takes the checkpoint of this step for the best
where this step is the best one, without a look for its folder. Nothing is waited for, and what rank 0 knows
and writes is as it was.

Upstream: https://github.com/huggingface/transformers/pull/40923,
https://github.com/huggingface/transformers/pull/37025
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised, assign

METHOD = "Trainer._save_checkpoint"
ASKS = "if os.path.exists(best_checkpoint_dir):"
TRIAL = Argument(1, "trial")


def look(code: Code) -> str | None:
    """The method must ask for the folder, without a barrier before it."""
    method = code.function(METHOD)
    if method is None:
        raise Unrecognised(f"{code.module} has no {METHOD}")
    if ASKS not in method:
        return "the best checkpoint is not looked for as it is saved"
    return "ranks wait before they look for the best checkpoint" if "dist.barrier()" in method else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Name this step's checkpoint on the ranks that may have looked too early."""

    def save(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        state = self.state
        if self.args.should_save or state.best_global_step != state.global_step:
            return
        folder = f"{module.PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        place = self._get_output_dir(trial=TRIAL.of(args, kwargs))
        assign(state, "best_model_checkpoint", os.path.join(place, folder))

    patch.wrap(module.Trainer, "_save_checkpoint", save)
