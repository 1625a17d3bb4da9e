"""Gradients are wrong in silence, or metadata differ: TorchScript runs another graph in the recomputation.

What the user sees: nothing, and wrong gradients in the first step, of the block that runs first or, where
each holds a scripted module of its own, of all; or ``Recomputed values … have different metadata``. Seen with
blocks that call a ``torch.jit.script`` function (fused bias and activation, a softmax in float32) or hold
scripted modules, with the non-reentrant variant. The reentrant variant trains right.

Why: TorchScript watches a function's first call and runs what it has optimised for the next. The optimised
graph saves the same tensors in another order, or others. The non-reentrant variant takes what the
recomputation saves for what the forward saved, by number, and compares shapes alone.

In every torch looked at, 2.1 to 2.15. transformers 4 takes the reentrant variant by default: with vlmpatch's
default this would be an error that the script did not have.

The change: a checkpointed call runs TorchScript as it is written, forward and recomputation, so that both
save the same. It fuses nothing there. Left alone: everything outside of checkpointed calls, calls with a
``context_fn`` of their own, torch's debug mode, which takes none, what is traced, and the reentrant variant.

Upstream: https://github.com/ai2cm/ace/issues/539 (``torch.jit.script`` cannot be checkpointed)
"""

from __future__ import annotations

from types import ModuleType

from vlmpatch.api import Code, Patch

from .._shared.checkpoint_contexts import look_at_entrance, run_in


def look(code: Code) -> str | None:
    """What a forward and its recomputation run in must be open."""
    look_at_entrance(code)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Run TorchScript as it is written in both."""
    import torch

    asks, sets = torch._C._get_graph_executor_optimize, torch._C._set_graph_executor_optimize

    class AsWritten:
        """``torch.jit.optimized_execution(False)`` without a generator: every block enters it twice."""

        __slots__ = ("before",)

        def __enter__(self) -> None:
            self.before = asks()
            sets(False)

        def __exit__(self, *failure: object) -> None:
            sets(self.before)

    run_in(patch, module, lambda: (AsWritten, AsWritten))
