"""A backward that failed, and was passed over, ended the run under FSDP1, or went wrong without a word.

What the user sees: an error in a backward (out of memory, an exception of the model's own) is caught,
``zero_grad`` called and the batch skipped or tried again, as plain torch allows; so does HF Trainer with
``auto_find_batch_size``. Then nothing, with wrong gradients from there on; where the next forward is under
``no_sync`` it is ``ValueError: expected to be in states [<TrainingState.IDLE: 1>] but current state is
TrainingState.FORWARD_BACKWARD``; in HF Trainer an error on a weight's shape.

Why: only the end of a backward shards units again, hands gradients over and clears the mark that it is waited
for. A backward that raises has no end, and as the mark stays, no later one waits for its own.

In every torch, up to 2.15.

The change: the next forward, or ``no_sync`` around it, finds the mark outside of a backward. Ranks tell each
other over the job's store that they failed, and how many collectives they had begun; where all failed at the
same place, gradients are dropped, the backward is ended and the window begins anew. Where one did not fail,
it waits in what the others left: the forward ends with an error that says so, after a minute at most.

Left alone: an error in a forward; ``fully_shard``, of which ``fsdp2-failed-backward`` is.

Upstream: https://github.com/pytorch/pytorch/blob/v2.8.0/torch/distributed/fsdp/_runtime_utils.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from vlmpatch.api import Code, Patch, Unrecognised, assign

from .._shared.failed_backward import Begun, ask_everywhere, begin

ID = "fsdp1-failed-backward"
CLASS = "FullyShardedDataParallel"
RUNTIME = "torch.distributed.fsdp._runtime_utils"
QUEUE, END = "_register_post_backward_final_callback", "_post_backward_final_callback"
NEEDED = {
    RUNTIME: {
        QUEUE: "state._post_backward_callback_queued = True",
        END: "root_state._post_backward_callback_queued = False",
    },
    "torch.distributed.fsdp.fully_sharded_data_parallel": {
        f"{CLASS}.forward": "_root_pre_forward(",
        f"{CLASS}.no_sync": "TrainingState.IDLE",
    },
}
GROUPS = ("process_group", "_inter_node_pg")

_begun: WeakKeyDictionary[Any, dict[Any, Begun]] = WeakKeyDictionary()  # by the root


def look(code: Code) -> str | None:
    """The mark must be set and cleared where it is known to be."""
    for name, text in NEEDED[code.module].items():
        function = code.function(name)
        if function is None or text not in function:
            raise Unrecognised(f"{name} in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Forget a backward that failed."""
    if module.__name__ == RUNTIME:
        patch.wrap(module, QUEUE, queue)
    else:
        patch.wrap(getattr(module, CLASS), "forward", begun_anew)
        patch.wrap(getattr(module, CLASS), "no_sync", begun_anew)


def queue(original: Callable[..., Any], state: Any, *args: Any, **kwargs: Any) -> Any:
    """Around what asks autograd for the end of a backward."""
    if not state._post_backward_callback_queued:
        every = (getattr(each, name, None) for each in state._all_fsdp_states for name in GROUPS)
        _begun[state] = begin(group for group in every if group is not None)
    return original(state, *args, **kwargs)


def begun_anew(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around what a model is asked for first after a backward."""
    waited = getattr(self, "_post_backward_callback_queued", False)
    within = waited and sys.modules["torch"]._C._current_graph_task_id() != -1  # a backward: a recomputation
    if waited and not within:
        forget(self)
    return original(self, *args, **kwargs)


def forget(root: Any) -> None:
    """Put away what a failed backward of ``root`` has left.

    Raises:
        RuntimeError: another rank did not fail, or elsewhere, and waits for this one.
    """
    begun = _begun.pop(root, None)
    if not begun:
        return
    ask_everywhere(ID, begun)
    handles = [state._handle for state in root._all_fsdp_states if state._handle]
    for handle in handles:
        drop_gradients(handle)
        assign(handle.flat_param, "_post_backward_called", False)
    getattr(sys.modules[RUNTIME], END)(root, root)
    for handle in handles:
        if hasattr(handle.flat_param, "_saved_grad_shard"):  # under no_sync the end of a backward keeps it
            handle.prepare_gradient_for_optim()
        drop_gradients(handle)


def drop_gradients(handle: Any) -> None:
    """Of this window."""
    for param in (handle.flat_param, *(handle.flat_param._params or ())):
        assign(param, "grad", None)
