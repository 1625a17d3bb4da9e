"""``loss.backward()`` beside a ZeRO engine ended in ``KeyError: 0``, or trained nothing without a word.

What the user sees: under ZeRO-1, 2 and 3 ``KeyError: 0``, from the second step on ``TypeError: 'NoneType'
object is not iterable``, ``no attribute 'ipg_index'``, or ``AssertionError: The parameter 3 has already been
reduced`` in the next backward. Under ZeRO-2 with ``offload_optimizer`` nothing: no gradient reaches the
optimizer. Nor is anything seen under ZeRO-1, where a second loss has a ``loss.backward()`` after
``engine.backward`` and before the step: it is not in that step.

Why: what makes a step of the gradients, ``engine.backward`` does before and after the backward itself.

Before 0.18.3, which takes either.

The change: an error says which line to change, where there was one of its kind that did not; a warning where
the run goes on. It is not made to work: a script that says ``loss.backward()`` may have divided by the
accumulation steps, as plain torch asks, or not, as DeepSpeed does, and only its author knows.

Left alone: what goes right. ZeRO-1 adds ``loss.backward()`` to the ``engine.backward`` that follows it; a
pipeline, and a script that calls ``engine.allreduce_gradients()``, end a backward by themselves.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/7665
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakSet

from vlmpatch.api import Code, Patch, Unrecognised

ENGINE, BACKWARD = "DeepSpeedEngine", "backward"
OPTIMIZERS = ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3")
ARRIVE = "reduce_ready_partitions_and_remove_grads"
EPILOGUE = "independent_gradient_partition_epilogue"
TAKES_EITHER = "register_output_backward_hooks"
WRITE = (
    "made by a backward that its engine did not run, as loss.backward() is. Before 0.18.3 DeepSpeed's ZeRO "
    "takes engine.backward(loss) only: write that in place of loss.backward(), without a division by "
    "gradient_accumulation_steps, which the engine does itself. With accelerate it is "
    "accelerator.backward(loss), in Lightning's manual optimization self.manual_backward(loss)"
)
ENDS = (
    f"vlmpatch [zero-backward-without-engine]: the gradients of this model were {WRITE}. More: python -m "
    "vlmpatch explain zero-backward-without-engine"
)
UNRELEASED = "unknown parameter type"  # of ZeRO-3, which has such gradients in a bucket yet
LEFT_OUT = f"this step leaves out gradients that were {WRITE}"

_running: WeakSet[Any] = WeakSet()  # optimizers in the middle of their engine's backward
_waiting: WeakSet[Any] = WeakSet()  # those with gradients that came outside of it, and that nothing has ended


def look(code: Code) -> str | None:
    """Gradients must arrive, and a backward end, in the functions as they are known."""
    if code.module.endswith("engine"):
        if TAKES_EITHER in code.source:
            return "this DeepSpeed takes loss.backward()"
        names = [f"{ENGINE}.{BACKWARD}"]
    else:
        present = [name for name in OPTIMIZERS if code.class_names(name) is not None]
        names = [f"{name}.{part}" for name in present for part in (ARRIVE, EPILOGUE, "step")]
    if not names or any(code.function(name) is None for name in names):
        raise Unrecognised(f"{code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Say what to write."""

    def step(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self in _waiting or _kept(self):
            return _step_without(patch, original, self, *args, **kwargs)
        return original(self, *args, **kwargs)

    if module.__name__.endswith("engine"):
        patch.wrap(module.DeepSpeedEngine, BACKWARD, backward)
        return
    optimizer = next(getattr(module, name) for name in OPTIMIZERS if hasattr(module, name))
    patch.wrap(optimizer, ARRIVE, arrive)
    patch.wrap(optimizer, EPILOGUE, epilogue)
    patch.wrap(optimizer, "step", step)


def backward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``DeepSpeedEngine.backward``."""
    optimizer = self.optimizer
    if type(optimizer).__name__ not in OPTIMIZERS:
        return original(self, *args, **kwargs)
    _running.add(optimizer)
    try:
        return original(self, *args, **kwargs)
    except AssertionError as error:  # a parameter has two gradients
        if optimizer in _waiting:
            raise type(error)(ENDS) from error
        raise
    finally:
        _running.discard(optimizer)


def arrive(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around what a gradient's hook calls."""
    if self in _running:
        return original(self, *args, **kwargs)
    _waiting.add(self)
    try:
        return original(self, *args, **kwargs)
    except (AttributeError, TypeError) as error:
        if getattr(self, "ipg_buffer", None) is None and not hasattr(self, "ipg_buckets"):
            raise type(error)(ENDS) from error
        raise


def epilogue(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around what ends a backward: the engine's, a pipeline's, a script's."""
    result = original(self, *args, **kwargs)
    _waiting.discard(self)
    return result


def _kept(optimizer: Any) -> bool:
    """Whether ZeRO-1, which has no hooks, has gradients that no backward of its engine took."""
    if getattr(optimizer, "partition_gradients", True) or optimizer.overlap_comm:
        return False
    return any(param.grad is not None for group in optimizer.bit16_groups for param in group)


def _step_without(patch: Patch, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """A step while gradients wait for the end of their backward."""
    groups = self.fp16_groups if hasattr(self, "fp16_groups") else self.bit16_groups
    none = any(self.averaged_gradients.get(number) is None for number in range(len(groups)))
    try:
        result = original(self, *args, **kwargs)
    except (KeyError, TypeError, RuntimeError) as error:
        if none or UNRELEASED in str(error):
            raise type(error)(ENDS) from error
        raise
    patch.warn("a step", LEFT_OUT)
    return result
