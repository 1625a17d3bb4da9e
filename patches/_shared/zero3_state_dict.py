"""State dicts of partitioned models: whole ones, and those the Trainer has gathered a moment ago."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from .zero3_parameters import whole

REMEDY = (
    'Take the call out of "if rank == 0" (or "if trainer.is_world_process_zero()"): only rank 0 writes. '
    "Where only one rank gets to it, as in a Trainer's _save, hand in the state_dict that _save is given."
)
# What the Trainer gathered for the save it is in: the model's id and its state dict.
_handed: dict[int, Mapping[str, Any] | None] = {}


def whole_state(model: Any, *, keep: bool) -> dict[str, Any]:
    """``model.state_dict()`` gathered, one parameter at a time, each of its whole shape; takes every rank.

    Args:
        model: any module; parameters that are tied stay one tensor.
        keep: whether this rank wants the values; an empty dict where it does not.
    """
    state = {}
    copies: dict[int, Any] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        with whole([value], changed=False):
            if keep and id(value) not in copies and hasattr(value, "ds_id"):
                copies[id(value)] = value.detach().cpu().clone()
        if keep:
            state[name] = copies.get(id(value), value.detach() if hasattr(value, "detach") else value)
    return state


def handed_over(model: Any) -> Mapping[str, Any] | None:
    """What the Trainer has gathered of ``model`` for the save it is in the middle of."""
    return _handed.get(id(model))


def is_on_rank_0(model: Any) -> bool:
    """Whether this rank took part in gathering ``model`` for rank 0, which alone has it and writes it."""
    return _handed.get(id(model), model) is None


@contextlib.contextmanager
def handing_over(model: Any) -> Iterator[Any]:
    """Inside, what is given to the function this yields is what ``handed_over(model)`` returns."""
    try:
        yield lambda state: _handed.__setitem__(id(model), state)
    finally:
        _handed.pop(id(model), None)
