"""Whether flash attention takes positions for packed rows, by how many dimensions they have."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest

from vlmpatch import api

flash: Any = importlib.import_module("vlmpatch.patches.transformers.flash_positions_along_axes")
SOURCE = "def _is_packed_sequence(position_ids, batch_size):\n    return position_ids.shape[1] > {0}\n"


class Positions:
    """Of some shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def dim(self) -> int:
        return len(self.shape)

    def __getitem__(self, none: None) -> Positions:
        return Positions(1, *self.shape)


def look(source: str) -> Any:
    return flash.look(api.Code("transformers.modeling_flash_attention_utils", "utils.py", source))


def test_the_bug_is_known() -> None:
    assert look(SOURCE) is None
    assert look("def other():\n    pass\n") == "packed rows are looked for elsewhere"
    seen_to = SOURCE.replace("> {0}", "and position_ids.dim() == 2")
    assert look(seen_to) == "dimensions of positions are seen to"


@pytest.fixture
def answered() -> Any:
    """The wrapper, around what says with what it was called."""
    made: list[Any] = []
    patch: Any = types.SimpleNamespace(wrap=lambda owner, name, wrapper: made.append(wrapper))
    flash.apply(patch, types.ModuleType("utils"))
    return lambda *args, **kwargs: made[0](lambda *a, **k: (a, k), *args, **kwargs)


def test_positions_along_axes_are_no_packed_rows(answered: Any) -> None:
    assert answered(Positions(3, 1, 7), 1) is False
    assert answered(position_ids=Positions(3, 1, 7), batch_size=1) is False


def test_positions_of_one_dimension_are_a_row(answered: Any) -> None:
    (positions, size), _ = answered(Positions(7), 1)
    assert (positions.shape, size) == ((1, 7), 1)


@pytest.mark.parametrize("positions", [Positions(1, 7), Positions(2, 7), None])
def test_others_are_handed_on(positions: Any, answered: Any) -> None:
    (given, size), _ = answered(positions, 2)
    assert given is positions
    assert size == 2
    assert answered(position_ids=positions, batch_size=1) == (
        (),
        {"position_ids": positions, "batch_size": 1},
    )
