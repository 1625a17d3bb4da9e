"""Backwards under DDP: where one begins, what it is going to reach, whether the reducer waits for more."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import ref

from vlmpatch.api import Code, Unrecognised


def look_for(code: Code, needed: Mapping[str, str]) -> None:
    """Each function of ``needed`` must be there and hold its text.

    Raises:
        Unrecognised: one does not.
    """
    for name, text in needed.items():
        if text not in (code.function(name) or ""):
            raise Unrecognised(f"{name} in {code.path} has no {text}")


def is_plain(ddp: Any) -> bool:
    """Whether nothing but its reducer reduces the gradients of ``ddp``, once a backward."""
    others = (ddp._comm_hooks, ddp._delay_all_reduce_params, ddp.mixed_precision, ddp._use_python_reducer)
    return not any(others) and not ddp._join_config.enable


def is_finalized(ddp: Any) -> bool:
    """Whether the reducer waits for no gradient."""
    try:
        ddp._check_reducer_finalized()
    except RuntimeError:
        return False
    return True


def at_backwards(ddp: Any, output: Any, begins: Callable[[Any], None]) -> None:
    """Call ``begins(ddp)`` where a backward comes to a tensor of ``output``, which ``ddp`` returned."""
    held = ref(ddp)

    def comes(gradients: Any) -> None:
        if (its := held()) is not None:
            begins(its)

    # on the nodes: a hook of a tensor is seen where the tensor is saved or printed
    with sys.modules["torch"]._C.DisableTorchFunction():  # a mode or a subclass may count what it sees
        nodes = {tensor.grad_fn for tensor in tensors_of(output)} - {None}
    for node in nodes:
        node.register_prehook(comes)


def at_its_end(ddp: Any, ends: Callable[[Any], None]) -> None:
    """Call ``ends(ddp)`` as the backward that runs ends, where it does not fail."""
    held = ref(ddp)

    def ended() -> None:
        if (its := held()) is not None:
            ends(its)

    sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(ended)


def tensors_of(output: Any) -> Iterator[Any]:
    """The tensors in a model's output; of objects that are no containers, none.

    Its own, because DDP's never comes back from a list that holds itself.
    """
    seen, left = set(), [output]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, sys.modules["torch"].Tensor):
            yield value
        elif isinstance(value, dict):
            left.extend(dict.values(value))
        elif isinstance(value, (list, tuple)):
            left.extend(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            left.extend(vars(value).values() if hasattr(value, "__dict__") else ())


def reached(ddp: Any) -> list[Any]:
    """The parameters to which the backward that runs is going to add; none in ``torch.autograd.grad``.

    Returns:
        Of each a view, whose graph leads to it: they may lie on several devices, and nothing is computed.
    """
    import torch

    executes = torch._C._will_engine_execute_node
    with torch.enable_grad():
        views = [p.expand_as(p) for p in ddp.module.parameters() if p.requires_grad]
    try:
        return [view for view in views if executes(view.grad_fn.next_functions[0][0])]
    except RuntimeError:  # that, for parameters
        return []
