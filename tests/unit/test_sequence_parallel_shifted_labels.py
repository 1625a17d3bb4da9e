"""Whether a loss is that of labels that were moved twice."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

patch: Any = importlib.import_module("vlmpatch.patches.transformers.sequence_parallel_shifted_labels")


@pytest.mark.parametrize(
    ("loss", "once", "twice", "said"),
    [
        (5.0, 1.2, 5.0, True),
        (4.85, 4.80, 4.85, True),  # of weights that know nothing yet, in float32
        (5.04, 1.2, 5.0, True),  # in half precision
        (1.2, 1.2, 5.0, False),
        (4.8, 4.8, 4.81, False),
        (4.82, 4.80, 4.84, None),
        (4.8, 4.8, 4.8, None),
        (6.0, 1.2, 5.0, False),  # with something else in it
        (float("nan"), 1.2, 5.0, None),
    ],
)
def test_a_loss_is_the_nearer_one(loss: float, once: float, twice: float, said: bool | None) -> None:
    assert patch.nearer(loss, once, twice) is said


def test_a_model_that_shows_no_logits_is_left_alone() -> None:
    assert patch.shifts(SimpleNamespace(loss=1.0, logits=None), None) is False
    assert patch.shifts((1.0,), None) is False


def test_it_is_the_model_inside_that_is_remembered() -> None:
    model = SimpleNamespace()
    tuned = SimpleNamespace(get_base_model=lambda: model)
    assert patch.within(SimpleNamespace(module=tuned)) is model
    assert patch.within(model) is model
