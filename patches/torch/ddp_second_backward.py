"""DDP averages the gradients of one backward a forward, and those of the next stay on their rank.

What the user sees: nothing. Two forwards and then a backward of each (a GAN's two losses, a chosen and a
rejected answer, a query and a document), or two backwards through one forward with ``retain_graph=True``:
the gradients of the second are added as each rank has them. Ranks drift apart, and one of them is saved.

Why: a forward has the reducer expect gradients, and the end of the backward has it expect none. A backward
after that adds to ``.grad`` and nothing is reduced. Beside text on one rank plain DDP stops instead (``marked
as ready twice``), since it still waits for the tower; once the tower has gradients on every rank it does not.

In every release of torch, up to 2.15. Lightning has the reducer expect gradients before each backward of its
manual optimization for that reason.

The change: where a backward begins at outputs of a forward whose gradients DDP was to reduce, and the reducer
is through with an earlier one, the gradients are averaged once more as that backward ends. What was averaged
before is the same on every rank, and so is its mean. Ranks tell each other over the job's store that they
are there; where one is not within a minute it is as before, from then on, with a warning.

Left alone: ``no_sync()``, ``torch.autograd.grad``, a backward of which DDP still waits for a part,
``create_graph=True``, ``static_graph``, communication hooks, ``Join``, optimizers in the backward, DDP's own
mixed precision, sparse gradients and ``DTensor``.

Upstream: https://github.com/pytorch/pytorch/issues/47260
https://github.com/pytorch/pytorch/blob/v2.8.0/torch/csrc/distributed/c10d/reducer.cpp
https://github.com/Lightning-AI/pytorch-lightning/blob/2.5.0/src/lightning/pytorch/overrides/distributed.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from vlmpatch.api import Code, Patch, assign

from .._shared.all_or_none import AllOrNone
from .._shared.ddp_backwards import at_backwards, at_its_end, is_finalized, is_plain, look_for, reached
from .._shared.distributed import largest_of_each

CLASS = "DistributedDataParallel"
NEEDED = {
    f"{CLASS}.forward": "self._post_forward(",
    f"{CLASS}._post_forward": "self.reducer.prepare_for_backward(",
    f"{CLASS}._check_reducer_finalized": "self.reducer._check_reducer_finalized()",
}
ALONE = (
    "a second backward after one forward, or of the second of two forwards, ran here and not on every rank. "
    "DDP does not average its gradients, and from now on vlmpatch does not either: they stay on each rank. "
    "Let every rank run it, or add the losses and run one backward."
)


class Backwards:
    """Backwards of one DDP: each is counted where it comes to an output, and may come to several."""

    def __init__(self) -> None:
        self._expected = False  # a forward has the reducer expect the next one
        self._task = -1  # the latest, by autograd's number

    def forward(self) -> None:
        """The reducer expects one backward."""
        self._expected = True

    def is_waited_for(self, task: int) -> bool:
        """Whether the reducer reduces what this backward adds, or it has come before."""
        if task == self._task:
            return True
        self._task, waited_for, self._expected = task, self._expected, False
        return waited_for


_backwards: WeakKeyDictionary[Any, Backwards] = WeakKeyDictionary()
_places: WeakKeyDictionary[Any, AllOrNone] = WeakKeyDictionary()  # of each process group


def look(code: Code) -> str | None:
    """What is called must be there."""
    look_for(code, NEEDED)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Average once more what a backward adds after the one that DDP waited for."""
    import torch

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return output
        together = self.require_backward_grad_sync and self.process_group.size() > 1
        if together and not self.static_graph and is_plain(self):
            _backwards.setdefault(self, Backwards()).forward()
            at_backwards(self, output, begins)
        return output

    def begins(ddp: Any) -> None:
        if _backwards[ddp].is_waited_for(torch._C._current_graph_task_id()) or not patch.active:
            return
        if torch.is_grad_enabled():  # create_graph=True: gradients that a further backward goes through
            return
        if ddp.require_backward_grad_sync and is_finalized(ddp) and is_dense(ddp) and reached(ddp):
            at_its_end(ddp, ends)

    def ends(ddp: Any) -> None:
        if not is_finalized(ddp):  # the reducer was told to expect this one, and has not yet ended
            return
        group = ddp.process_group
        place = _places.setdefault(group, AllOrNone(patch.id, group))
        if place.alone:
            return
        if place.come():
            average(ddp)
        elif place.missed:
            patch.warn("alone", ALONE)

    patch.wrap(getattr(module, CLASS), "forward", forward)


def trained(ddp: Any) -> Iterator[Any]:
    """The parameters whose gradients DDP reduces."""
    ignored = set(getattr(ddp, "parameters_to_ignore", ()))
    for name, parameter in ddp.module.named_parameters():
        if parameter.requires_grad and name not in ignored:
            yield parameter


def is_dense(ddp: Any) -> bool:
    """Whether the gradients are plain tensors that hold every number."""
    sparse = any(getattr(module, "sparse", False) for module in ddp.module.modules())
    return not sparse and not any(hasattr(parameter, "device_mesh") for parameter in trained(ddp))


def average(ddp: Any) -> None:
    """Make each gradient the mean of what the ranks have; a rank without one has zeros."""
    import torch
    import torch.distributed as dist

    group = ddp.process_group
    parameters = list(trained(ddp))
    mine = [int(parameter.grad is not None) for parameter in parameters]
    somewhere = largest_of_each(mine, [group], parameters[0].device)
    size, works = dist.get_world_size(group), []
    for parameter, anywhere in zip(parameters, somewhere, strict=True):
        if not anywhere:
            continue
        if parameter.grad is None:
            assign(parameter, "grad", torch.zeros_like(parameter))
        parameter.grad.div_(size)  # as DDP does it: before the sum, which 16 bits might not hold
        works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))
    for work in works:
        work.wait()
