"""A backward that failed, and was passed over, left FSDP2's root without gradients for the rest of the run.

What the user sees: nothing. An error in a backward (out of memory, an exception of the model's own) is
caught, ``zero_grad`` called and the batch skipped or tried again, as plain torch allows; so does HF Trainer
with ``auto_find_batch_size``. The loss goes on falling, but what the root holds (embeddings, the head, a
tower that is no unit) is never reduced again, nor the unit in which it failed, and the optimizer may train
what is no parameter any more.

Why: only the end of a backward reduces what no hook reduced and clears the mark that it is waited for. A
backward that raises has no end, and as the mark stays, no later one waits for its own.

In every torch that has ``fully_shard``, 2.15 included; in 2.8 the next forward ends in an error. Since 2.13
scripts can call ``FSDPModule.reset_iter_state()``; in 2.13 it leaves the gradients of units that were not
reduced yet, which the next backward adds to its own.

The change: the next forward, or accelerate's ``free_memory``, with which HF Trainer begins again, finds the
mark outside of a backward. Ranks tell each other over the job's store that they failed, and how many
collectives they had begun; where all failed at the same place, gradients are dropped, units sharded again and
the window begins anew, as torch's ``reset_iter_state`` has it. Where one did not fail, it waits in what the
others left: the forward ends with an error that says so, after a minute at most.

Left alone: an error in a forward; backends that do not count their collectives.

Upstream: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from vlmpatch.api import Code, Patch, Unrecognised, assign

from .._shared.failed_backward import Begun, ask_everywhere, begin

ID = "fsdp2-failed-backward"
ACCELERATOR, STATE = "accelerate.accelerator", "FSDPState"
QUEUE = "_register_root_post_backward_final_callback"
MARK = "self._state_ctx.post_backward_final_callback_queued = "
NEEDED = {QUEUE: f"{MARK}True", "_root_post_backward_final_callback": f"{MARK}False", "_pre_forward": ""}
SUM = "unsharded_accumulated_grad"  # of backwards that did not reduce
GROUPS = ("shard_process_group", "replicate_process_group")

_begun: WeakKeyDictionary[Any, dict[Any, Begun]] = WeakKeyDictionary()  # by what all units of a model share


def look(code: Code) -> str | None:
    """The mark must be set and cleared where it is known to be."""
    if code.module == ACCELERATOR:
        if code.function(name := "Accelerator.free_memory") is None:
            raise Unrecognised(f"{code.path} has no {name}")
        return None
    for name, text in NEEDED.items():
        function = code.function(f"{STATE}.{name}")
        if function is None or text not in function:
            raise Unrecognised(f"{STATE}.{name} in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Forget a backward that failed."""
    if module.__name__ == ACCELERATOR:
        patch.wrap(module.Accelerator, "free_memory", free_memory)
        return
    import torch

    def _pre_forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        waited = self._state_ctx.post_backward_final_callback_queued
        if waited and torch._C._current_graph_task_id() == -1:  # no recomputation, within a backward
            forget(self._state_ctx)
        return original(self, *args, **kwargs)

    def queue(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not self._state_ctx.post_backward_final_callback_queued:
            groups = (group for unit in units(self._state_ctx) for group in process_groups(unit))
            _begun[self._state_ctx] = begin(groups)
        return original(self, *args, **kwargs)

    state = getattr(module, STATE)
    patch.wrap(state, "_pre_forward", _pre_forward)
    patch.wrap(state, QUEUE, queue)


def free_memory(original: Callable[..., Any], self: Any, /, *objects: Any) -> Any:
    """Around accelerate's, which begins a training: its optimizer is to be made of what is sharded."""
    if sys.exc_info()[0] is None:  # while an error goes up a training ends: nothing is to be waited for
        from torch.distributed.fsdp import FSDPModule

        for model in getattr(self, "_models", ()):  # a class may have borrowed the method alone
            if isinstance(model, FSDPModule):
                context = model._get_fsdp_state()._state_ctx
                if context.post_backward_final_callback_queued:
                    with contextlib.suppress(RuntimeError):  # the next forward says it
                        forget(context)
    return original(self, *objects)


def forget(context: Any) -> None:
    """Put away what a failed backward of the model whose units share ``context`` has left.

    Raises:
        RuntimeError: another rank did not fail, or elsewhere, and waits for this one.
    """
    begun = _begun.get(context)
    if not begun:
        return
    ask_everywhere(ID, begun)
    del _begun[context]
    for unit in units(context):
        drop_gradients(unit)
    root = next(state for state in context.all_states if state._is_root)
    reset = getattr(root, "_reset_iter_state", None)  # from torch 2.13 on
    reset() if reset else finish(root)


def drop_gradients(unit: Any) -> None:
    """Of this window; torch's own reset keeps, in 2.13, what the failed backward had not reduced."""
    for param in unit.fsdp_params:
        assign(param.sharded_param, "grad", None)
        if hasattr(param, "_unsharded_param"):
            assign(param._unsharded_param, "grad", None)
        if not isinstance(getattr(type(param), SUM, None), property):  # from 2.15 on the sum is the gradient
            assign(param, SUM, None)
    assign(unit, "_partial_reduce_output", None)


def finish(root: Any) -> None:
    """End the backward, with nothing to reduce."""
    context = root._state_ctx
    last = context.is_last_backward
    assign(context, "is_last_backward", True)
    root._root_post_backward_final_callback()
    assign(context, "is_last_backward", last)
    for unit in units(context):
        unit._to_sharded()


def units(context: Any) -> Iterator[Any]:
    """Every group of parameters that is gathered together, of all units of a model."""
    for state in context.all_states:
        if hasattr(state, "_fsdp_param_groups"):  # one at most in older releases
            yield from state._fsdp_param_groups
        elif state._fsdp_param_group is not None:
            yield state._fsdp_param_group


def process_groups(unit: Any) -> list[Any]:
    """Those in which ``unit`` is gathered and reduced."""
    found = (getattr(unit.mesh_info, name, None) for name in GROUPS)
    return [group for group in found if group is not None]
