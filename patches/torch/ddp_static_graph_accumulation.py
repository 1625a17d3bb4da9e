"""``expect_autograd_hooks_ INTERNAL ASSERT FAILED``: DDP with a static graph, and gradient accumulation.

What the user sees: the first backward ends so (``please report a bug to PyTorch``) where DDP is told
``static_graph=True`` (HF Trainer's ``ddp_static_graph``, accelerate's ``DistributedDataParallelKwargs``) and
gradients are accumulated. A static graph is what many set against ``Expected to mark a variable ready only
once`` of reentrant checkpointing.

Why: the first backward of all has the reducer reduce at its end, whether or not it was told to expect
gradients; in ``no_sync``, which an accumulation begins with, it was not. Where the first backward
synchronises, all is right, and ``no_sync`` after it as well.

Since torch 2.1; 2.15 has it.

The change: until a backward has begun under a static graph, ``no_sync`` synchronises: the micro-batches of
the first window are averaged one by one, which comes to the same gradients. From the second window on it is
as without vlmpatch. Left alone: every DDP without a static graph.

Upstream: https://github.com/pytorch/pytorch/issues/143580, https://github.com/huggingface/accelerate/issues/3679
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

CLASS, SINK = "DistributedDataParallel", "_DDPSink.backward"
BEGUN = "_static_graph_delay_allreduce_enqueued"
SYNCHRONISES = "require_backward_grad_sync"


def look(code: Code) -> str | None:
    """What ends the first backward must be told by it that it has begun, and ask nothing else."""
    sink, forward = code.function(SINK), code.function(f"{CLASS}._post_forward")
    if sink is None or forward is None or code.function(f"{CLASS}.no_sync") is None:
        raise Unrecognised(f"{code.path} has no {SINK} as any known release has it")
    if BEGUN not in sink or BEGUN not in forward:
        return "a static graph begins with a backward that synchronises"
    if SYNCHRONISES in sink or forward.source.count(SYNCHRONISES) > 1:
        return "this DDP asks whether the first backward synchronises"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Synchronise until a backward has begun."""

    def no_sync(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self.static_graph and not self._static_graph_delay_allreduce_enqueued:
            return contextlib.nullcontext()
        return original(self, *args, **kwargs)

    patch.wrap(getattr(module, CLASS), "no_sync", no_sync)
