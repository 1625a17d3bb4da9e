"""A block that catches exceptions, or ends in TorchScript, dies where torch ends its recomputation.

What the user sees: ``RuntimeError: The following operation failed in the TorchScript interpreter`` without a
reason, an error that the block's own ``except`` raises, or ``Unexpected state: target_frame.early_stop is
set`` (a bare ``AssertionError`` in older torch), in the backward of a block whose last operator is inside
of a ``torch.jit.script`` function, as fused bias and dropout are, or of a ``try``. The reentrant variant
trains it.

Why: the recomputation of the non-reentrant variant ends as soon as it has what the backward needs, by an
exception raised inside of the block, an ``Exception`` like others. TorchScript makes one of its own of it; an
``except Exception`` takes it for a failure of the block.

In every torch looked at, 2.1 to 2.15. transformers 4 takes the reentrant variant by default: with vlmpatch's
default such a block would end in an error that it did not have.

The change: once a recomputation has all that it needs, whatever exception leaves it is taken for its end. One
that comes before is the block's own and goes on. Left alone: recomputations that are to run to their end
(``set_checkpoint_early_stop(False)``). What the block does in its ``except`` it does.

Upstream: https://github.com/pytorch/pytorch/pull/96866 (ends recomputations early),
https://github.com/ai2cm/ace/issues/539 (``torch.jit.script`` cannot be checkpointed)
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from vlmpatch.api import Argument, Code, Patch, Unrecognised

HOOK = "_recomputation_hook"  # is entered before a recomputation and left after it
FRAME, GROUP = Argument(0, "target_frame_ref"), Argument(1, "gid")
ENDED = "target_frame.early_stop and target_frame.recomp_counter[gid] == len("


def look(code: Code) -> str | None:
    """A recomputation must count what it saves, and end by an exception when that is all."""
    enter = code.function(f"{HOOK}.__init__")
    if enter is None or enter.parameters != ("self", *(FRAME.name, GROUP.name)) or ENDED not in enter:
        raise Unrecognised(f"{code.module} ends a recomputation in a way unknown to us")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let a recomputation that has all it needs end in whatever exception."""
    recomputed: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()

    def begin(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        recomputed[self] = FRAME.of(args, kwargs), GROUP.of(args, kwargs)

    def end(original: Any, self: Any, /, *failure: Any) -> Any:
        suppressed = original(self, *failure)
        if not failure or not isinstance(failure[1], Exception) or self not in recomputed:
            return suppressed
        frame_ref, group = recomputed[self]
        return _has_all(frame_ref(), group) or suppressed

    hook = getattr(module, HOOK)
    patch.wrap(hook, "__init__", begin)
    patch.wrap(hook, "__exit__", end)


def _has_all(frame: Any, group: Any) -> bool:
    """Whether all that the backward needs was saved again; what a block saved afterwards does not count."""
    if frame is None or not frame.early_stop or frame.recomp_counter[group] < len(frame.weak_holders):
        return False
    frame.recomp_counter[group] = len(frame.weak_holders)
    return True
