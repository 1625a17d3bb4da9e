"""A zero that stands for a gradient that was never made, told apart from one that was.

A flat partition holds a number for every parameter. Where a parameter got no gradient that number is minus
zero: reduced with those of other ranks, or added to in the next micro-batch, it stays minus zero as long as
none of them has a gradient, and becomes theirs as soon as one has. So the sum says by itself whether anybody
used the parameter, and nothing is communicated for it. What loses the sign on the way (a quantised reduction)
makes it a zero as any other.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

# Of each ZeRO optimizer the ids of the parameters that this rank's last backward did not reach.
unreached: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()


def none_made(like: Any, **kwargs: Any) -> Any:
    """A gradient that stands for none, of the shape of ``like``."""
    import torch

    return torch.full_like(like, -0.0, **kwargs)


def nobody_made(gradient: Any) -> Any:
    """A boolean tensor of no dimension: whether every element of ``gradient`` is minus zero."""
    return ((gradient == 0) & gradient.signbit()).all()
