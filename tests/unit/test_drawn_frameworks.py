"""Trainings of frameworks drawn at random: a seed draws the same again, and each has a measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.e2e import drawn_swift, drawn_swift_rlhf, drawn_trl
from tests.e2e.drawing import Told
from tests.lab import envs

STACKS = envs.read_stacks()
Draw = Callable[[int, int], list[Told]]
DRAWS: dict[str, Draw] = {
    "rlhf": lambda seed, count: drawn_swift_rlhf.drawn(STACKS["swift341"], seed, count, ["qwen2_vl"]),
    "wide": lambda seed, count: drawn_swift.widened(STACKS["swift460"], seed, count, ["qwen2_vl"]),
    "trl": lambda seed, count: drawn_trl.drawn(STACKS["trl024"], seed, count, ["qwen2_vl"]),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_draws_the_same_again_and_another_does_not(name: str) -> None:
    one, again, other = (DRAWS[name](seed, 5) for seed in (0, 0, 1))
    assert one == again
    assert one != other


def test_what_is_drawn_of_trl_reaches_every_trainer_and_engine_and_has_a_measure() -> None:
    every = DRAWS["trl"](0, 600)
    assert {told["trainer"] for told in every} == set(drawn_trl.TRAINERS)
    assert {told["engine"] for told in every} == set(drawn_trl.ENGINES)
    for measured in map(drawn_trl.measure, every):
        assert measured["engine"] == "ddp_unused"
        assert measured["arguments"]["gradient_checkpointing"] is False
        assert "resume" not in measured["acts"]


def test_what_knows_no_images_is_handed_none() -> None:
    every = [told for told in DRAWS["trl"](0, 600) if told["made"]["rows"] == "text"]
    assert not any(count for told in every for count in told["rows"])
    assert set(drawn_trl.NO_IMAGES) <= {told["trainer"] for told in every}


def test_what_is_drawn_of_rlhf_is_of_its_verbs() -> None:
    verbs = Counter(told["arguments"]["rlhf_type"] for told in DRAWS["rlhf"](0, 200))
    assert set(verbs) == set(drawn_swift_rlhf.VERBS)


def test_what_is_drawn_wide_is_what_is_drawn_and_one_thing_more() -> None:
    plain = drawn_swift.drawn(STACKS["swift460"], 0, 200, ["qwen2_vl"])
    wide = drawn_swift.widened(STACKS["swift460"], 0, 200, ["qwen2_vl"])
    assert plain == drawn_swift.drawn(STACKS["swift460"], 0, 200, ["qwen2_vl"])
    more = [
        set(told["arguments"]) - set(before["arguments"]) for before, told in zip(plain, wide, strict=True)
    ]
    every = (*drawn_swift.FOR_FULL, *drawn_swift.FOR_LORA, *drawn_swift.FOR_ALL)
    assert {name for names in more for name in names} <= {name for each in every for name in each}
    assert sum(map(bool, more)) > 50
    assert all(drawn_swift.measure(told)["engine"] == "ddp_unused" for told in wide)
