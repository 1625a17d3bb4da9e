"""Saving a ZeRO-3 model on one rank only waits for ever.

What the user sees: after the last step the program hangs (NCCL), or ends with ``Connection closed by
peer`` (gloo). MiniCPM-V's ``safe_save_model_for_hf_trainer`` does it: it saves where
``local_rank == 0``.

Why: every rank holds a part of each parameter, so saving gathers, and a gather needs every rank.

What is done: before such a save the ranks meet, over the store that started the job, without a
collective. A rank that waits for others is told who is missing and what to change after half a minute,
and gets an error just before DeepSpeed's own half hour is over: a rank may come late for good reasons.
One meeting a save; nothing in a step.

Every DeepSpeed. Upstream: https://github.com/OpenBMB/MiniCPM-V/blob/main/finetune/finetune.py
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

SAVES = ("_zero3_consolidated_16bit_state_dict", "save_checkpoint")
SOON = 30.0  # seconds until the warning
WAIT = 1700.0  # seconds until the error: a save that would still come through must not be given up
ALONE = (
    "{save} was called on {here} and not on {absent} within {wait:.0f} s. Under ZeRO-3 every rank holds a "
    "part of each parameter, so every rank has to call it; only rank 0 writes. Take the call out of "
    '"if local_rank == 0" (or "if trainer.is_world_process_zero()").'
)


def look(code: Code) -> str | None:
    """The engine must have both ways to save."""
    for name in SAVES:
        if code.function(f"DeepSpeedEngine.{name}") is None:
            raise Unrecognised(f"DeepSpeedEngine has no {name}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Meet before saving."""
    meetings: Counter[str] = Counter()

    def meeting_first(name: str) -> Callable[..., Any]:
        def save(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.zero_optimization_partition_weights():
                meetings[name] += 1
                meet(patch, name, meetings[name])
            return original(self, *args, **kwargs)

        return save

    for name in SAVES:
        patch.wrap(module.DeepSpeedEngine, name, meeting_first(name))


def meet(patch: Patch, save: str, number: int) -> None:
    """Wait until every rank has come to save ``number``; say early who has not.

    Raises:
        RuntimeError: some did not.
    """
    import torch.distributed as dist

    ranks = range(dist.get_world_size())
    if len(ranks) == 1:
        return
    store = dist.distributed_c10d._get_default_store()
    keys = {rank: f"vlmpatch/{save}/{number}/{rank}" for rank in ranks}
    store.set(keys[dist.get_rank()], "here")
    start, pause = time.monotonic(), 0.01
    while not store.check(list(keys.values())):
        waited = time.monotonic() - start
        if waited > min(SOON, WAIT):
            here = [rank for rank in ranks if store.check([keys[rank]])]
            absent = [rank for rank in ranks if rank not in here]
            words = ALONE.format(save=save, here=_named(here), absent=_named(absent), wait=waited)
            if waited > WAIT:
                raise RuntimeError(words)
            patch.warn(save, f"{words} Still waiting.")
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
