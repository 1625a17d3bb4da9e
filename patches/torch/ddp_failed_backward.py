"""A backward that failed, and was passed over, ended the next forward under DDP.

What the user sees: an error in a backward (out of memory, an exception of the model's own) is caught,
``zero_grad`` called and the batch skipped or tried again, as plain torch allows. The next forward ends in
``RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one``, which
speaks of unused parameters.

Why: the reducer waits for the gradients that the failed backward never computed; only the end of a backward
clears what it counts. ``reducer._reset_state()`` clears it, and alone can leave wrong weights, the more so
the sooner it is called: what the failed backward began to reduce is still under way.

In every release, up to 2.15; torch before 2.4 has nothing that clears it, and is left as it is.

The change: at the next forward that records gradients ranks tell each other over the job's store that they
failed, and how many collectives they had begun. Where all failed at the same place they wait for those in a
barrier, and the reducer is reset. Where one did not, it waits in what the others left: the forward ends with
an error that says so, after a minute at most. It ended before, too, with less to say.

Left alone: a script that did not call ``zero_grad``, whose gradients are half reduced; parameters that had no
part in a backward that ended; communication hooks, ``Join``, optimizers in the backward, DDP's own mixed
precision; the first backward under ``static_graph``, in which the reducer does not see a failure.

Upstream: https://github.com/pytorch/pytorch/blob/v2.8.0/torch/csrc/distributed/c10d/reducer.cpp
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from vlmpatch.api import Code, Patch, assign

from .._shared.ddp_backwards import at_backwards, at_its_end, is_finalized, is_plain, look_for
from .._shared.failed_backward import Backward, collectives

CLASS = "DistributedDataParallel"
ID = "ddp-failed-backward"
NEEDED = {
    f"{CLASS}.forward": "self._post_forward(",
    f"{CLASS}._check_reducer_finalized": "self.reducer._check_reducer_finalized()",
    f"{CLASS}._update_process_group": "self.reducer._reset_state()",
}
NOTED = (
    "the first backward under static_graph=True failed. DDP notes in it which parameters get gradients, and "
    "may never reduce those that got none: end the run, or wrap the model in DDP again."
)


class Begun(NamedTuple):
    """Where a backward began."""

    number: int  # of the backwards of its group
    collectives: int  # that its group had begun


_backwards: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of each process group
_open: WeakKeyDictionary[Any, Begun] = WeakKeyDictionary()  # of each model, while its backward has not ended
_noted: WeakSet[Any] = WeakSet()  # models a backward of which has ended


def look(code: Code) -> str | None:
    """What is called must be there."""
    look_for(code, NEEDED)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Forget a backward that failed."""
    import torch

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return original(self, *args, **kwargs)
        if self in _open and torch._C._current_graph_task_id() == -1:  # no recomputation of it, within
            if self.static_graph and self not in _noted:
                patch.warn("static_graph", NOTED)
            forget(self)
        output = original(self, *args, **kwargs)
        if self.require_backward_grad_sync and is_plain(self):
            at_backwards(self, output, begin)
        return output

    patch.wrap(getattr(module, CLASS), "forward", forward)


def begin(ddp: Any) -> None:
    """A backward of ``ddp`` has begun; called once for each of its outputs."""
    if ddp in _open:
        return
    begun = collectives(ddp.process_group)
    if begun is None:
        return
    number = _backwards[ddp.process_group] = _backwards.get(ddp.process_group, 0) + 1
    _open[ddp] = Begun(number, begun)
    at_its_end(ddp, end)


def end(ddp: Any) -> None:
    """It has not failed."""
    _open.pop(ddp, None)
    _noted.add(ddp)


def forget(ddp: Any) -> None:
    """Put away what a failed backward of ``ddp`` has left.

    Raises:
        RuntimeError: another rank did not fail, or elsewhere, and waits for this one.
    """
    begun = _open.pop(ddp)
    if is_finalized(ddp) or not is_zeroed(ddp):
        return
    group = ddp.process_group
    since = (collectives(group) or 0) - begun.collectives
    backward = Backward(ID, group, begun.number)
    backward.failed(since)
    backward.ask(since)
    sys.modules["torch.distributed"].barrier(group)
    assign(ddp, "_has_rebuilt_buckets", False)
    ddp.reducer._reset_state()


def is_zeroed(ddp: Any) -> bool:
    """Whether the gradients were dropped: what is in them is reduced in part."""
    grads = [parameter.grad for parameter in ddp.parameters() if parameter.grad is not None]
    return not any(bool(grad.count_nonzero()) for grad in grads)
