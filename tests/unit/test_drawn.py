"""Trainings drawn at random: a seed draws the same again, and each can be run and has a measure."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from tests.e2e import drawn
from tests.lab.cells import Result


def test_a_seed_draws_the_same_again_and_another_does_not() -> None:
    once, again, other = (
        [cell.id for cell in drawn.drawn(seed, 40, ["qwen2_vl", "llava"])] for seed in (3, 3, 4)
    )
    assert once == again != other
    assert len(set(once)) == 40


def test_what_is_drawn_has_a_measure_and_reaches_every_engine_and_tuning() -> None:
    every = drawn.drawn(0, 600, ["qwen2_vl"])
    assert all(cell.reference.engine in ("plain", "plain_zeros") for cell in every)
    engines, tunings = Counter(cell.engine for cell in every), Counter(cell.tuning for cell in every)
    assert set(engines) == set(drawn.ENGINES)
    assert set(tunings) == set(drawn.TUNINGS)
    assert {cell.scenario for cell in every} == set(drawn.SCENARIOS)
    assert not any(cell.zero or cell.config for cell in every if not cell.engine.startswith("zero"))


def test_a_seed_draws_the_same_on_whatever_number_of_ranks() -> None:
    on_two, on_more = (drawn.drawn(3, 40, ["qwen2_vl"], ranks) for ranks in ((2,), (3, 4)))
    assert {cell.world for cell in on_two} == {2}
    assert {cell.world for cell in on_more} == {3, 4}
    assert [dataclasses.replace(cell, world=2) for cell in on_more] == on_two


@pytest.mark.parametrize(
    ("bare", "patched", "word"),
    [(0.0, 0.0, "same"), (0.5, 0.0, "fixed"), (0.0, 0.5, "harmed"), (0.5, 0.5, "wrong")],
)
def test_harm_is_what_is_right_bare_alone(bare: float, patched: float, word: str) -> None:
    cell = drawn.drawn(0, 1, ["qwen2_vl"])[0]
    assert drawn.word(cell, result(bare), result(patched)) == word


def result(difference: float) -> Result:
    return Result(
        id="cell",
        ok=True,
        error=None,
        tensors=1,
        missing=(),
        difference=difference,
        between_ranks=0.0,
        losses=(),
        patches={},
        digests=(),
        log="",
        seconds=0.0,
    )
