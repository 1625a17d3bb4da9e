"""A large gradient was freed, and its memory written to, while another stream still reduced it.

What the user sees: on GPUs, with ZeRO-2 (or ZeRO-1) and ``overlap_comm``, a norm of NaN, a loss of 0.0 from
some step on, or gradients that differ from run to run; right with ``overlap_comm: false``.

Why: with ``overlap_comm`` gradients are reduced on a stream of their own. One larger than
``reduce_bucket_size`` is not copied into a bucket but reduced where it lies, and let go of as soon as its
reduction is queued. Its memory belongs to the stream of the backward, which is given it again at once, and
does not wait for the reduction. HF's ``"auto"`` makes the bucket ``hidden_size ** 2``: then every matrix of
an MLP is larger.

What is done: torch is told that the stream of reductions uses such a gradient, so its memory is not given
away before that stream is done with it. Nothing waits.

Since 0.19.0 DeepSpeed says so itself, but for a gradient that is spread over several ranks and whose first
piece fits into a bucket: of that nothing is said on ranks that keep none of it. Seen on a GPU with 0.14.2 to
0.19.8 (``python -m tests.gpu``). The buckets themselves are another matter: ``zero-overlapped-buckets``.

Upstream: https://github.com/deepspeedai/DeepSpeed/issues/5347,
https://github.com/deepspeedai/DeepSpeed/issues/7188, https://github.com/deepspeedai/DeepSpeed/pull/7965
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.overlapped import apart

OPTIMIZER, AVERAGE, REDUCE = "DeepSpeedZeroOptimizer", "average_tensor", "reduce_ipg_grads"


def look(code: Code) -> str | None:
    """A large gradient must be reduced where it lies, on another stream, and let go of."""
    average, reduce = (code.function(f"{OPTIMIZER}.{name}") for name in (AVERAGE, REDUCE))
    if average is None or reduce is None or average.parameters[:2] != ("self", "tensor"):
        raise Unrecognised(f"{OPTIMIZER}.{AVERAGE} in {code.path} is not as any known release has it")
    if "self.reduction_stream" not in average or "extra_large" not in reduce:
        return "no large gradient is reduced on another stream"
    return "the memory is kept" if "tensor.record_stream(" in average else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Keep the memory of large gradients until they are reduced."""

    def average(original: Callable[..., Any], self: Any, /, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # The function itself does not read the size: a test's own optimizer may lack it.
        sized = hasattr(self, "reduce_bucket_size") and apart(self, module.get_accelerator())
        if sized and tensor.numel() > self.reduce_bucket_size:
            tensor.record_stream(self.reduction_stream)
        return original(self, tensor, *args, **kwargs)

    patch.wrap(module.DeepSpeedZeroOptimizer, AVERAGE, average)
