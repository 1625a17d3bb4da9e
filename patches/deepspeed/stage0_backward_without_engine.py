"""``loss.backward()`` beside a DeepSpeed engine without ZeRO: nothing is printed, each rank trains by itself.

What the user sees: under stage 0 nothing. ``loss.backward()`` and ``engine.step()`` run on as in plain torch,
the losses fall, and the ranks' weights drift apart from the first step on.

Why: ``engine.backward`` reduces the gradients over the ranks. What another backward made stays as it is, and
the step takes it.

Before 0.18.3; 0.19.8 ends in an error that says so.

The change: a warning at the step. It says so only where the gradients cannot have been reduced: since the
step before it there was no collective in any group of this process, and no backward of the engine.

Left alone: gradients that a script averages itself, by DDP, hooks or ``engine.allreduce_gradients()``; one
rank; ZeRO. A script that asks the ranks for something else in every step, such as their mean loss, is not
warned.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/7665
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from vlmpatch.api import Code, Patch, Unrecognised

ENGINE, BACKWARD, STEP = "DeepSpeedEngine", "backward", "step"
TAKES_EITHER = "register_output_backward_hooks"
SAYS = (
    "this engine takes a step with gradients that no rank has reduced: they are of loss.backward(), and each "
    "rank trains by itself. Write engine.backward(loss) in place of loss.backward(), without a division by "
    "gradient_accumulation_steps, which the engine does itself"
)

_counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # collectives up to an engine's last step
_ran: WeakSet[Any] = WeakSet()  # engines whose own backward ran since


def look(code: Code) -> str | None:
    """A backward and a step must be there, and a DeepSpeed that does not take either backward."""
    if TAKES_EITHER in code.source:
        return "this DeepSpeed takes loss.backward(), or refuses it"
    if any(code.function(f"{ENGINE}.{name}") is None for name in (BACKWARD, STEP)):
        raise Unrecognised(f"{code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Warn at a step of gradients that nothing reduced."""

    def step(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self.zero_optimization_stage() or self.dp_world_size < 2:
            return original(self, *args, **kwargs)
        if self.is_gradient_accumulation_boundary() and _apart(self):
            patch.warn("a step", SAYS)
        result = original(self, *args, **kwargs)
        _ran.discard(self)
        _counts[self] = _collectives()
        return result

    def backward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        _ran.add(self)
        return original(self, *args, **kwargs)

    patch.wrap(module.DeepSpeedEngine, STEP, step)
    patch.wrap(module.DeepSpeedEngine, BACKWARD, backward)


def _apart(engine: Any) -> bool:
    """Whether the gradients of ``engine`` are this rank's alone."""
    count = _collectives()
    if not count or _counts.get(engine) != count or engine in _ran or not engine.enable_backward_allreduce:
        return False
    return any(parameter.grad is not None for parameter in engine.module.parameters())


def _collectives() -> int:
    """How many collectives this process has begun; 0 where its groups do not say."""
    groups = sys.modules["torch.distributed"].distributed_c10d._world.pg_map
    try:
        return sum(group._get_sequence_number_for_group() for group in groups)
    except RuntimeError:  # a backend that does not count
        return 0
