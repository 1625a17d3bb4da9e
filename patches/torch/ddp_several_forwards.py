"""Several forwards before one backward, under a DDP that searches for unused parameters.

What the user sees: ``Expected to mark a variable ready only once``, in a step with two forwards and one
backward of which the second uses less than the first: an image and a text, a query and a document, a batch
beside one that is rehearsed. HF Trainer searches with checkpointing off, for every PeftModel, and by
``unused-under-checkpointing`` for a tower that is trained.

Why: each forward searches its own outputs for parameters that it did not use, and the last search is the one
that stands. What only an earlier forward used is taken for unused, marked ready as the backward begins, and
then gets its gradient.

So is a head that a script's ``compute_loss`` calls itself, on what the forward returned.

In every release of torch.

The change: where a backward goes through what is left of several forwards, the search is made once more as it
begins, by what autograd is about to reach; after a single forward it is not. In accelerate's ``backward``,
which is HF Trainer's, the loss is at hand, and its graph is searched: that finds such a head, and is one more
walk through the graph in every step of a DDP that searches.

A backward that leaves out one of the forwards is searched for likewise. What another adds after it, of the
forward that was left out, ``ddp-second-backward`` averages.

Left alone, and as before: ``torch.autograd.grad``; a static graph; parameters used past the wrapper where the
backward is not accelerate's.

Upstream: https://github.com/pytorch/pytorch/blob/v2.8.0/torch/nn/parallel/distributed.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.ddp_backwards import is_finalized, look_for, reached

SINK = "_DDPSink"  # what the outputs of a DDP that searches go through
ACCELERATOR, MODELS = "Accelerator", "_models"
CTX, LOSS = Argument(0, "ctx"), Argument(0, "loss")
NEEDED = {
    f"{SINK}.forward": "ctx.ddp_weakref = ",
    f"{SINK}.backward": "ctx.ddp_weakref()",
    "DistributedDataParallel._post_forward": "self.reducer.prepare_for_backward(",
    "DistributedDataParallel._check_reducer_finalized": "self.reducer._check_reducer_finalized()",
}


class Forwards:
    """Forwards of one DDP that no backward has gone through yet.

    Attributes:
        made: how many there were.
        sinks: what stands for each in its graph; a reference dies with it.
        task: the latest backward, by autograd's number.
    """

    def __init__(self) -> None:
        self.made = 0
        self.sinks: list[ref[Any]] = []
        self.task = -1

    def add(self, sink: Any) -> None:
        """One more."""
        self.made += 1
        self.sinks = [*self.alive(), ref(sink)]

    def alive(self) -> list[ref[Any]]:
        """Those whose graph is still there."""
        return [sink for sink in self.sinks if sink() is not None]

    def begin(self, left: list[ref[Any]]) -> None:
        """A backward goes through all but ``left``."""
        self.sinks, self.made = left, len(left)


_forwards: WeakKeyDictionary[Any, Forwards] = WeakKeyDictionary()


def look(code: Code) -> str | None:
    """Outputs must go through what notes their wrapper, and a search be asked for by its own name."""
    if code.class_names(ACCELERATOR) is not None:
        function = code.function(f"{ACCELERATOR}.backward")
        if function is None or function.parameters[:2] != ("self", "loss") or MODELS not in code.source:
            raise Unrecognised(f"{ACCELERATOR}.backward in {code.path} is not as any known release has it")
        return None
    look_for(code, NEEDED)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Note forwards, and search again where a backward goes through several."""
    if hasattr(module, ACCELERATOR):
        patch.wrap(module.Accelerator, "backward", search_from_loss)
        return

    def forward(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        ctx = CTX.of(args, kwargs)
        if (ddp := ctx.ddp_weakref()) is not None and not ddp.static_graph:
            _forwards.setdefault(ddp, Forwards()).add(ctx)
        return result

    def backward(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        ctx = CTX.of(args, kwargs)
        if (ddp := ctx.ddp_weakref()) is not None and ddp in _forwards:
            begin(ddp, _forwards[ddp])
        return original(*args, **kwargs)

    patch.wrap(getattr(module, SINK), "forward", forward)
    patch.wrap(getattr(module, SINK), "backward", backward)


def search_from_loss(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``Accelerator.backward``."""
    loss = LOSS.of(args, kwargs)
    own = {id(model) for model in getattr(self, MODELS, ())}  # a class may have borrowed the method alone
    for ddp, forwards in list(_forwards.items()):
        if not forwards.sinks or id(ddp.module) not in own or not ddp.require_backward_grad_sync:
            continue
        through = {id(node) for node in sinks_of(getattr(loss, "grad_fn", None))}
        inside = [id(sink()) in through for sink in forwards.alive()]
        if inside and all(inside) and is_finalized(ddp):
            ddp.reducer.prepare_for_backward([loss])
            forwards.begin([])
    return original(self, *args, **kwargs)


def sinks_of(root: Any) -> Iterator[Any]:
    """What stands for forwards in the graph of a loss; what lies behind that is not looked at."""
    seen, left = set(), [root]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == f"{SINK}Backward":
            yield node
        else:
            left.extend(following for following, _ in node.next_functions)


def begin(ddp: Any, forwards: Forwards) -> None:
    """A backward has come to one of ``forwards``; the first of them comes before any parameter."""
    import torch

    task = torch._C._current_graph_task_id()
    if task == forwards.task:
        return
    forwards.task = task
    if forwards.made < 2:
        forwards.begin([])
        return
    used = reached(ddp)
    if not used:
        return
    left = [sink for sink in forwards.alive() if not torch._C._will_engine_execute_node(sink())]
    forwards.begin(left)
    if ddp.require_backward_grad_sync and is_finalized(ddp):
        ddp.reducer.prepare_for_backward(used)
