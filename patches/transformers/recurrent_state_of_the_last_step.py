"""``Trying to backward through the graph a second time``: RecurrentGemma goes on where a step ended.

What the user sees: with checkpointing, or with ``use_cache=False``, the second forward and backward ends in
that error; non-reentrant checkpointing ends in the first, as ``Recomputed values … have different metadata``.

Why: a recurrent layer keeps the state that it ended with on the module, and only a forward with a cache makes
it new. Without one, which is what checkpointing makes of it, a forward begins with what the last one left.
Where a row begins that state is multiplied by zero, so no value is wrong. But the backward goes through the
graph that made it, and the recomputation, which finds a state where the forward had none, keeps one tensor
more.

Since transformers 4.40, until 5.0.

The change: where every row begins at position 0, a state that still has its graph is not handed to the scan,
which then begins with zeros: the same numbers. Rows that go on keep their state, and so does decoding.

Upstream: https://github.com/huggingface/transformers/pull/43203 (ended it)
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.compiling import compiling

BLOCK, SCAN = "RecurrentGemmaRecurrentBlock.forward", "RecurrentGemmaRglru._rnn_scan"
MADE_NEW = "self.rg_lru.recurrent_states = None"
RESET, STATE = Argument(2, "reset"), Argument(3, "recurrent_states")


def look(code: Code) -> str | None:
    """A block that has no cache must not forget the state."""
    block = code.function(BLOCK)
    if block is None or code.function(SCAN) is None:
        raise Unrecognised(f"{code.module} has no {BLOCK} or no {SCAN}")
    return "a forward without a cache forgets the state" if MADE_NEW in block else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let a scan over rows that begin begin with nothing."""
    import torch

    traced = compiling()

    def scan(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        state = STATE.of(args, kwargs)
        if state is not None and state.requires_grad and torch.is_grad_enabled() and not traced():
            reset = RESET.of(args, kwargs)  # [batch or 1, length, 1]
            if bool(reset[:, 0].all()):
                args, kwargs = STATE.replaced(args, kwargs, None)
        return original(self, *args, **kwargs)

    patch.wrap(module.RecurrentGemmaRglru, "_rnn_scan", scan)
