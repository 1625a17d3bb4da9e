"""The order in which every rank reduces its gradients, without ranks."""

from __future__ import annotations

import importlib
import random
from typing import Any

import pytest

reduction_order: Any = importlib.import_module("vlmpatch.patches._shared.reduction_order")
ReductionOrder, backward_order = reduction_order.ReductionOrder, reduction_order.backward_order


class Parameter:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


PARAMETERS = [Parameter(f"p{number}") for number in range(6)]


def new_order() -> Any:
    return ReductionOrder([(param, 0) for param in PARAMETERS])


def backward(order: Any, arriving: list[Parameter]) -> tuple[list[str], int]:
    """What is reduced, and how many waited at most."""
    reduced, waited = [], 0
    for param in arriving:
        order.arrive(param)
        reduced += [ready.name for ready, _, _ in order.ready()]
        waited = max(waited, len(order.waiting))
    reduced += [param.name for param, _ in order.rest()]
    return reduced, waited


@pytest.mark.parametrize("seed", range(20))
def test_ranks_reduce_the_same_whatever_arrives_and_when(seed: int) -> None:
    chance = random.Random(seed)
    arriving = chance.sample(PARAMETERS, chance.randint(0, len(PARAMETERS)))
    reduced, _ = backward(new_order(), arriving)
    assert reduced == [param.name for param in PARAMETERS]


def test_nothing_waits_where_gradients_arrive_in_order() -> None:
    assert backward(new_order(), PARAMETERS)[1] == 0


def test_nothing_waits_once_the_order_has_been_learnt() -> None:
    one = new_order()
    arriving = PARAMETERS[::-1]
    assert backward(one, arriving)[1] > 0
    assert one.heard is not None
    one.reorder(one.heard)
    one.begin()
    assert backward(one, arriving) == ([param.name for param in arriving], 0)


@pytest.mark.parametrize("seed", range(20))
def test_what_takes_its_turn_is_reduced_as_if_it_had_waited(seed: int) -> None:
    chance = random.Random(seed)
    arriving = chance.sample(PARAMETERS, chance.randint(0, len(PARAMETERS)))
    arriving = chance.choice([arriving, sorted(arriving, key=PARAMETERS.index)])
    order, reduced, at_once = new_order(), [], 0
    order.heard = None
    for param in arriving:
        if order.takes_turn(param):
            reduced.append(param.name)
            at_once += 1
        else:
            order.arrive(param)
            reduced += [ready.name for ready, _, _ in order.ready()]
        assert not order.takes_turn(param)
    assert [*reduced, *(param.name for param, _ in order.rest())] == [param.name for param in PARAMETERS]
    assert at_once == len(PARAMETERS) or arriving != PARAMETERS


def test_nothing_takes_its_turn_before_the_order_is_known() -> None:
    assert not new_order().takes_turn(PARAMETERS[0])


def test_what_was_not_heard_keeps_its_place_behind() -> None:
    one = new_order()
    one.reorder([4, 2])
    assert [param.name for param, _ in one.members] == ["p4", "p2", "p0", "p1", "p3", "p5"]


def test_a_second_gradient_after_its_turn_is_told_apart() -> None:
    one = new_order()
    one.arrive(PARAMETERS[0])
    assert [param for param, _, _ in one.ready()] == PARAMETERS[:1]
    assert one.passed(PARAMETERS[0])
    assert not one.passed(PARAMETERS[1])
    one.begin()
    assert not one.passed(PARAMETERS[0])


def test_the_first_guess_ends_with_the_tower_wherever_it_is_registered() -> None:
    names = ["llm.embed", "llm.layers.0", "llm.head", "vpm.patch", "resampler.proj"]
    params = {name: Parameter(name) for name in names}
    decayed, plain = [params["vpm.patch"], params["llm.layers.0"]], [params["llm.head"], params["llm.embed"]]
    decayed.append(params["resampler.proj"])
    order = backward_order([decayed, plain], {param: name for name, param in params.items()})
    assert [(param.name, group) for param, group in order] == [
        ("llm.head", 1),
        ("llm.layers.0", 0),
        ("llm.embed", 1),
        ("resampler.proj", 0),
        ("vpm.patch", 0),
    ]
