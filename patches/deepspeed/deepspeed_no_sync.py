"""``no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2``, or 3.

What the user sees: that AssertionError in the first step of a run that accumulates gradients,
under ZeRO-2 and ZeRO-3. Under ZeRO-1, ``It is illegal to call Engine.step() inside no_sync context manager``.

Why: an engine has a method ``no_sync`` since DeepSpeed 0.16.0. accelerate enters the ``no_sync`` of any model
that has one, between the last micro-batches but one of a window; until then an engine had none, and counted
micro-batches by itself, as it still does.

Since DeepSpeed 0.16.0, with HF Trainer before transformers 4.48, and with ``accelerator.accumulate`` of an
accelerate that does not ask for the ZeRO stage yet (1.9.0 is the first that does).

The change: where the engine partitions gradients ``Accelerator.no_sync`` does nothing, as before 0.16.0.
Where it does not, what accelerate's own backward does inside of it (backward and step of the engine) is done
as if outside, for it could only end in that error; ``engine.backward`` by hand, which works there and divides
by no window, is left alone. So is an accelerate that asks for the stage: it tells the engine where a window
ends.

Upstream: https://github.com/deepspeedai/DeepSpeed/issues/6793,
https://github.com/huggingface/accelerate/issues/3481, https://github.com/huggingface/transformers/pull/35157
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

NO_SYNC, BACKWARD = "Accelerator.no_sync", "DeepSpeedEngineWrapper.backward"
MODEL = Argument(0, "model")
INSIDE = "inside_no_sync_ctxt"  # what an engine says in its no_sync


def look(code: Code) -> str | None:
    """``no_sync`` must take any model's, and a backward of accelerate's must step by itself."""
    name, known = (
        (BACKWARD, "self.engine.step()")
        if code.module.endswith("deepspeed")
        else (NO_SYNC, 'getattr(model, "no_sync", context)')
    )
    function = code.function(name)
    if function is None or known not in function:
        raise Unrecognised(f"{name} in {code.path} is not as any known release has it")
    asks = any(text in function for text in ("zero_stage", "sync_gradients"))
    return "accelerate asks for the ZeRO stage" if asks else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Do nothing for an engine that could not go on."""

    def no_sync(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        partitions = getattr(MODEL.of(args, kwargs), "zero_optimization_partition_gradients", None)
        if self.distributed_type == module.DistributedType.DEEPSPEED and partitions and partitions():
            return contextlib.nullcontext()
        return original(self, *args, **kwargs)

    def backward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        inside = getattr(self.engine, INSIDE, False)
        with patch.swapped(self.engine, INSIDE, False) if inside else contextlib.nullcontext():
            return original(self, *args, **kwargs)

    if hasattr(module, "Accelerator"):
        patch.wrap(module.Accelerator, "no_sync", no_sync)
    else:
        patch.wrap(module.DeepSpeedEngineWrapper, "backward", backward)
