"""A zero that stands for a gradient that was never made, told apart from one that was.

A flat partition holds a number for every parameter. Where a parameter got no gradient that number is minus
zero: reduced with those of other ranks, or added to in the next micro-batch, it stays minus zero as long as
none of them has a gradient, and becomes theirs as soon as one has. So the sum says by itself whether anybody
used the parameter, and nothing is communicated for it. What loses the sign on the way (a quantised reduction)
makes it a zero as any other.

A module that ran on something blank, for other ranks wait for its gradients, gets zeros in earnest: they are
given the same sign.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from vlmpatch.api import assign

# Of each ZeRO optimizer the ids of the parameters that this rank's last backward did not reach.
unreached: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
_none: set[int] = set()  # those that stand for none in gradients of this backward, until ``taken``


def none_made(like: Any, **kwargs: Any) -> Any:
    """A gradient that stands for none, of the shape of ``like``."""
    import torch

    return torch.full_like(like, -0.0, **kwargs)


def nobody_made(gradient: Any) -> Any:
    """A boolean tensor of no dimension: whether every element of ``gradient`` is minus zero."""
    return ((gradient == 0) & gradient.signbit()).all()


def from_nothing(parameters: Iterable[Any], *, dropped: bool) -> None:
    """In a backward: where it brings zeros to ``parameters`` and nothing else, that stands for none.

    Args:
        parameters: what ran on something blank, and perhaps on a real thing in the same backward as well.
        dropped: whether to take away afterwards what no rank made (DDP); an optimizer over a flat partition
            passes over it by itself.
    """
    engine = _engine()
    asked = [parameter for parameter in parameters if parameter.requires_grad]
    handles = [parameter.register_hook(_none_where_zero) for parameter in asked]
    count_as_none(asked)

    def over() -> None:
        for handle in handles:
            handle.remove()
        if dropped:
            engine.queue_callback(drop)  # behind DDP's own, which was queued in the meantime

    def drop() -> None:
        _drop(asked)

    engine.queue_callback(over)


def count_as_none(parameters: Iterable[Any]) -> None:
    """In a backward: this rank's gradients of ``parameters`` may stand for none."""
    _none.update(map(id, parameters))


def taken() -> set[int]:
    """The ids of those of which that was said since this was asked last."""
    found = {*_none}
    _none.clear()
    return found


def _none_where_zero(gradient: Any) -> Any:
    import torch

    return torch.where(gradient.any(), gradient, none_made(gradient))


def _drop(parameters: list[Any]) -> None:
    import torch

    by_device: dict[Any, list[Any]] = {}  # each device is waited for once
    for parameter in parameters:
        if parameter.grad is not None:
            by_device.setdefault(parameter.grad.device, []).append(parameter)
    for there in by_device.values():
        none = torch.stack([nobody_made(parameter.grad) for parameter in there])
        for parameter, nobody in zip(there, none.tolist(), strict=True):
            if nobody:
                assign(parameter, "grad", None)


def _engine() -> Any:
    from torch.autograd import Variable

    return Variable._execution_engine
