"""Whether flash attention takes positions for packed rows, by how many dimensions they have."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest

from vlmpatch import api

flash: Any = importlib.import_module("vlmpatch.patches.transformers.flash_positions_along_axes")
ASKED = "def _is_packed_sequence(position_ids, batch_size):\n    return position_ids.shape[1] > {0}\n"
SOURCE = ASKED + "def prepare_fa_kwargs_from_position_ids(position_ids):\n    pass\n"


class Positions:
    """Of some shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def dim(self) -> int:
        return len(self.shape)

    def __getitem__(self, which: int | None) -> Positions:
        return Positions(1, *self.shape) if which is None else Positions(*self.shape[1:])


def look(source: str) -> Any:
    return flash.look(api.Code("transformers.modeling_flash_attention_utils", "utils.py", source))


def test_the_bug_is_known() -> None:
    assert look(SOURCE) is None
    assert look("def other():\n    pass\n") == "packed rows are looked for elsewhere"
    seen_to = SOURCE.replace("> {0}", "and position_ids.dim() == 2")
    assert look(seen_to) == "dimensions of positions are seen to"
    with pytest.raises(api.Unrecognised, match="boundaries"):
        look(ASKED)


@pytest.fixture(params=[flash.ASKED, flash.MADE])
def answered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The wrapper of each, around what says with what it was called."""
    made: dict[str, Any] = {}
    monkeypatch.setattr(flash, "counted", lambda positions: ("counted", positions.shape))
    patch: Any = types.SimpleNamespace(wrap=lambda owner, name, wrapper: made.update({name: wrapper}))
    flash.apply(patch, types.ModuleType("utils"))
    return lambda *args, **kwargs: made[request.param](lambda *a, **k: (a, k), *args, **kwargs)


def test_positions_along_axes_are_counted_along_the_row(answered: Any) -> None:
    assert answered(Positions(3, 1, 7), 1) == ((("counted", (1, 7)), 1), {})
    said = {"position_ids": Positions(3, 1, 7), "batch_size": 1}
    assert answered(**said) == ((), {"position_ids": ("counted", (1, 7)), "batch_size": 1})


def test_positions_of_one_dimension_are_a_row(answered: Any) -> None:
    (positions, size), _ = answered(Positions(7), 1)
    assert (positions.shape, size) == ((1, 7), 1)


@pytest.mark.parametrize("positions", [Positions(1, 7), Positions(2, 7), Positions(1, 7, 2), None])
def test_others_are_handed_on(positions: Any, answered: Any) -> None:
    (given, size), _ = answered(positions, 2)
    assert given is positions
    assert size == 2
    assert answered(position_ids=positions, batch_size=1) == (
        (),
        {"position_ids": positions, "batch_size": 1},
    )
