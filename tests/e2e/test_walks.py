"""Scripts drawn at random (``tests/mishaps/walks.py``): none right bare is otherwise with vlmpatch."""

from __future__ import annotations

import pytest

from tests.mishaps import walks
from tests.mishaps.walk import OPTIMIZERS, Walk, draw

STACKS = ("tf457-ds0182", "tf457-ds0198", "tf523-ds0198")
# F17: a NaN batch, dropped, whose gradient reached the layer that the text after it passes by.
DROPPED_THEN_TEXT = "batch,step,nan,text,step"


@pytest.mark.slow
@pytest.mark.parametrize("engine", walks.ENGINES)
@pytest.mark.parametrize("stack", STACKS)
def test_no_walk_is_harmed(stack: str, engine: str) -> None:
    taken = walks.take(stack, engine, map(draw, range(40)))
    assert [walks.shown(each) for each in taken if each.word == "harmed"] == []
    assert any(each.word in ("right", "fixed") for each in taken)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["zero3", "zero3_offload"])
@pytest.mark.parametrize("stack", STACKS)
def test_a_dropped_batch_does_not_reach_the_text_after_it(stack: str, engine: str) -> None:
    dropped = [Walk.of(f"0:1:{optimizer}:{DROPPED_THEN_TEXT}") for optimizer in OPTIMIZERS]
    for taken in walks.take(stack, engine, dropped):
        assert taken.word == "fixed", walks.shown(taken)
