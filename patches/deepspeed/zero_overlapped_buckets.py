"""A bucket of gradients was filled again while another stream still reduced it.

What the user sees: on GPUs, with ZeRO-2 (or ZeRO-1) and ``overlap_comm``, a norm of NaN, a loss of 0.0 from
some step on, or gradients that differ from run to run; right with ``overlap_comm: false``.

Why: with ``overlap_comm`` there are two buckets, one that the backward fills and one that another stream
reduces. Until 0.14.2 nothing waited when a bucket was filled again, however far behind that stream was. From
0.17.2 to 0.17.4 it did, but a bucket that had been reduced forgot which of the two it was: only the second
was ever used.

What is done: until 0.14.2 the backward waits, before a bucket is reduced, for the reduction of the other, as
releases from 0.14.3 on do; later a bucket keeps its number. Either way one reduction still overlaps the
backward. Left alone: releases that let the backward wait for every reduction (0.17.5 to 0.18.4).

A gradient that is larger than a bucket is another matter: ``zero-overlapped-reduction``.

Upstream: https://github.com/deepspeedai/DeepSpeed/issues/5545,
https://github.com/deepspeedai/DeepSpeed/pull/5606, https://github.com/deepspeedai/DeepSpeed/pull/7371
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised, assign

from .._shared.overlapped import apart

OPTIMIZER, REDUCE = "DeepSpeedZeroOptimizer", "reduce_ipg_grads"
FILL = "reduce_independent_p_g_buckets_and_remove_grads"
CLEAR = "IPGBucket.clear"  # since 0.17.2


def look(code: Code) -> str | None:
    """A bucket must be filled again without a wait, or be the same one each time."""
    average, reduce, fill = (
        code.function(f"{OPTIMIZER}.{name}") for name in ("average_tensor", REDUCE, FILL)
    )
    if average is None or reduce is None or fill is None or "self.reduction_stream" not in average:
        raise Unrecognised(f"{OPTIMIZER} in {code.path} is not as any known release has it")
    clear = code.function(CLEAR)
    if clear is not None and "self.index = 0" in clear:
        return "the backward waits for each reduction" if "wait_stream(" in fill else None
    return "the backward waits for the other bucket" if "current_stream().wait_stream(" in average else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Wait for the other bucket, and let each keep its number."""

    def reduce(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        accelerator = module.get_accelerator()
        if not apart(self, accelerator):
            return original(self, *args, **kwargs)
        if not hasattr(module, "IPGBucket"):
            accelerator.current_stream().wait_stream(self.reduction_stream)
            return original(self, *args, **kwargs)
        numbered = [(bucket, bucket.index) for bucket in self.ipg_buckets.values()]
        result = original(self, *args, **kwargs)
        for bucket, number in numbered:
            assign(bucket, "index", number)
        return result

    patch.wrap(module.DeepSpeedZeroOptimizer, REDUCE, reduce)
