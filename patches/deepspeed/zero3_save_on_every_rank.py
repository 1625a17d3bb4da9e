"""Saving a ZeRO-3 model on one rank only waits forever.

What the user sees: after the last step the program hangs (NCCL), or ends with ``Connection closed by
peer`` (gloo). MiniCPM-V's ``safe_save_model_for_hf_trainer`` does it: it saves where
``local_rank == 0``.

Why: every rank holds a part of each parameter, so saving gathers, and a gather needs every rank.

What is done: before such a save the ranks meet, over the store that started the job, without a
collective. Where another rank has ended, or certainly waits for this one elsewhere, an error says so within
a minute: who is missing, where it is and what to change. Where it may only be late (over NCCL a wait for the
device tells no more), a warning says that after half a minute;
just before DeepSpeed's own half hour is over nobody is waited for any longer. One rendezvous a save; nothing
in a step.

Every DeepSpeed. Upstream: https://github.com/OpenBMB/MiniCPM-V/blob/main/finetune/finetune.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.rendezvous import attend, rendezvous

SAVES = ("_zero3_consolidated_16bit_state_dict", "save_checkpoint")
REMEDY = (
    'Only rank 0 writes: take the call out of "if local_rank == 0" (or "if trainer.is_world_process_zero()").'
)


def look(code: Code) -> str | None:
    """The engine must have both ways to save."""
    for name in SAVES:
        if code.function(f"DeepSpeedEngine.{name}") is None:
            raise Unrecognised(f"DeepSpeedEngine has no {name}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Meet before saving."""

    def made(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.zero_optimization_partition_weights():
            attend(patch)

    def meeting_first(name: str) -> Callable[..., Any]:
        def save(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self.zero_optimization_partition_weights():
                rendezvous(patch, self.module.parameters(), name, why=REMEDY)
            return original(self, *args, **kwargs)

        return save

    patch.wrap(module.DeepSpeedEngine, "__init__", made)
    for name in SAVES:
        patch.wrap(module.DeepSpeedEngine, name, meeting_first(name))
