"""``no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2``, or 3.

What the user sees: that AssertionError in the first step of a run that accumulates gradients,
under ZeRO-2 and ZeRO-3. Under ZeRO-1, ``It is illegal to call Engine.step() inside no_sync context manager``.

Why: an engine has a method ``no_sync`` since DeepSpeed 0.16.0. accelerate enters the ``no_sync`` of any model
that has one, between the last micro-batches but one of a window; until then an engine had none, and counted
micro-batches by itself, as it still does.

Since DeepSpeed 0.16.0, with HF Trainer before transformers 4.48, and with ``accelerator.accumulate`` of an
accelerate that does not ask for the ZeRO stage yet (1.6.0 does not, 1.12.0 does).

The change: for an engine ``Accelerator.no_sync`` does nothing, as before 0.16.0. An accelerate that asks for
the stage is left alone: it tells the engine where a window ends.

Upstream: https://github.com/deepspeedai/DeepSpeed/issues/6793,
https://github.com/huggingface/accelerate/issues/3481, https://github.com/huggingface/transformers/pull/35157
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

NAME = "Accelerator.no_sync"
MODEL = Argument(0, "model")


def look(code: Code) -> str | None:
    """``no_sync`` must take any model's."""
    function = code.function(NAME)
    if function is None or 'getattr(model, "no_sync", context)' not in function:
        raise Unrecognised(f"{NAME} in {code.path} is not as any known release has it")
    return "accelerate asks for the ZeRO stage" if "zero_stage" in function else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Do nothing for an engine."""

    def no_sync(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        engine = self.distributed_type == module.DistributedType.DEEPSPEED and hasattr(
            MODEL.of(args, kwargs), "zero_optimization_partition_gradients"
        )
        return contextlib.nullcontext() if engine else original(self, *args, **kwargs)

    patch.wrap(module.Accelerator, "no_sync", no_sync)
