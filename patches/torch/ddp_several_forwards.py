"""Several forwards before one backward, under a DDP that searches for unused parameters.

What the user sees: ``Expected to mark a variable ready only once``, in a step with two forwards and one
backward of which the second uses less than the first: an image and a text, a query and a document, a batch
beside one that is rehearsed. HF Trainer searches with checkpointing off, for every PeftModel, and by
``unused-under-checkpointing`` for a tower that is trained.

Why: each forward searches its own outputs for parameters that it did not use, and the last search is the one
that stands. What only an earlier forward used is taken for unused, marked ready as the backward begins, and
then gets its gradient.

In every release of torch.

The change: where a backward goes through what is left of several forwards, the search is made once more as it
begins, by what autograd is about to reach. One forward before a backward costs nothing.

Left alone, and as before: a backward that leaves out one of the forwards while its outputs are kept, so that
another may follow; ``torch.autograd.grad``; a static graph; a backward in which parameters used past the
wrapper come first.

Upstream: https://github.com/pytorch/pytorch/blob/v2.8.0/torch/nn/parallel/distributed.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from vlmpatch.api import Argument, Code, Patch, Unrecognised

SINK = "_DDPSink"  # what the outputs of a DDP that searches go through
CTX = Argument(0, "ctx")
NEEDED = {
    f"{SINK}.forward": "ctx.ddp_weakref = ",
    f"{SINK}.backward": "ctx.ddp_weakref()",
    "DistributedDataParallel._post_forward": "self.reducer.prepare_for_backward(",
    "DistributedDataParallel._check_reducer_finalized": "self.reducer._check_reducer_finalized()",
}


class Forwards:
    """Forwards of one DDP that no backward has gone through yet.

    Attributes:
        sinks: what stands for each in its graph; a reference dies with it.
        task: the latest backward, by autograd's number.
    """

    def __init__(self) -> None:
        self.sinks: list[ref[Any]] = []
        self.task = -1


_forwards: WeakKeyDictionary[Any, Forwards] = WeakKeyDictionary()


def look(code: Code) -> str | None:
    """Outputs must go through what notes their wrapper, and a search be asked for by its own name."""
    for name, needed in NEEDED.items():
        if needed not in (code.function(name) or ""):
            raise Unrecognised(f"{name} in {code.path} has no {needed}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Note forwards, and search again where a backward goes through several."""

    def forward(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        ctx = CTX.of(args, kwargs)
        if (ddp := ctx.ddp_weakref()) is not None and not ddp.static_graph:
            _forwards.setdefault(ddp, Forwards()).sinks.append(ref(ctx))
        return result

    def backward(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        ctx = CTX.of(args, kwargs)
        if (ddp := ctx.ddp_weakref()) is not None and ddp in _forwards:
            begin(ddp, _forwards[ddp])
        return original(*args, **kwargs)

    patch.wrap(getattr(module, SINK), "forward", forward)
    patch.wrap(getattr(module, SINK), "backward", backward)


def begin(ddp: Any, forwards: Forwards) -> None:
    """A backward has come to one of ``forwards``; the first of them comes before any parameter."""
    import torch

    task = torch._C._current_graph_task_id()
    if task == forwards.task:
        return
    forwards.task = task
    made = forwards.sinks
    if len(made) < 2:
        forwards.sinks = []
        return
    used = reached(ddp)
    if not used:
        return
    alive = [sink for sink in made if sink() is not None]
    forwards.sinks = left = [sink for sink in alive if not torch._C._will_engine_execute_node(sink())]
    if not left and ddp.require_backward_grad_sync and waits_for_nothing(ddp):
        with torch.enable_grad():
            ddp.reducer.prepare_for_backward([_joined(used)])


def waits_for_nothing(ddp: Any) -> bool:
    """Whether no gradient of this backward has arrived."""
    try:
        ddp._check_reducer_finalized()
    except RuntimeError:
        return False
    return True


def reached(ddp: Any) -> list[Any]:
    """The parameters to which the backward that runs is going to add; none in ``torch.autograd.grad``."""
    import torch

    with torch.enable_grad():
        try:
            return [p for p in ddp.module.parameters() if p.requires_grad and _is_reached(p)]
        except RuntimeError:  # that, for parameters
            return []


def _is_reached(parameter: Any) -> bool:
    import torch

    accumulates = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return bool(torch._C._will_engine_execute_node(accumulates))


def _joined(parameters: list[Any]) -> Any:
    """A tensor whose graph leads to ``parameters`` and nowhere else; it holds no number."""
    import torch

    return torch.stack([part.sum() for part in _empty_parts(parameters)]).sum()


def _empty_parts(parameters: list[Any]) -> Iterator[Any]:
    for parameter in parameters:
        yield parameter.flatten()[:0]
