"""How walks are drawn, written, read and judged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mishaps import walker
from tests.mishaps.walk import COUNTED, DEEDS, Walk, draw
from tests.mishaps.walks import Taken, Trace

A, B, C = [0.5], [0.6], [0.7]
DIED = "step: RuntimeError: it died"


@given(st.integers(0, 10**6))
def test_a_walk_is_read_as_it_is_written(seed: int) -> None:
    assert Walk.of(str(draw(seed))) == draw(seed)


@given(st.integers(0, 10**6))
def test_a_step_comes_only_after_a_batch(seed: int) -> None:
    walk = draw(seed)
    pairs = list(zip(("", *walk.deeds), walk.deeds, strict=False))
    if walk.accumulation > 1:
        assert all(before in COUNTED for before, deed in pairs if deed == "step")
    assert walk.deeds[0] != "step"


@pytest.mark.parametrize("text", ["1:1:Adam:batch", "1:1:SGD:jump", "1:1:SGD:"])
def test_what_is_no_walk_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no walk"):
        Walk.of(text)


def test_every_deed_is_done() -> None:
    assert walker.DEEDS.keys() == DEEDS.keys()


@pytest.mark.parametrize(
    ("bare", "patched", "word"),
    [
        ([A, B], [A, B], "right"),
        ([A, C], [A, B], "fixed"),
        ([A, DIED], [A, B], "fixed"),
        ([A, C], [A, C], "wrong"),
        ([A, DIED], [A, C], "wrong"),
        ([A, B], [A, C], "harmed"),
        ([A, B], [A], "harmed"),
        ([A, C], [C, B], "harmed"),
        ([A, B], [A, [float("nan")]], "harmed"),
    ],
)
def test_harm_is_what_leaves_plain_torch_before_the_bare_run_does(
    bare: Trace, patched: Trace, word: str
) -> None:
    assert Taken(draw(0), [A, B], bare, patched).word == word
