"""llamafactory-forced-reentrant, where transformers' Trainer switches checkpointing on once more."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

forced: Any = importlib.import_module("vlmpatch.patches.llamafactory.llamafactory_forced_reentrant")
MODULE = "llamafactory.model.model_utils.checkpointing"
ENABLES = """
def _gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None, use_unsloth_gc=False):
    if gradient_checkpointing_kwargs is None:
        gradient_checkpointing_kwargs = {"use_reentrant": True}
    self.used = (gradient_checkpointing_kwargs["use_reentrant"], use_unsloth_gc)
"""


class Model:
    used: tuple[bool, bool]


@pytest.fixture
def module() -> Any:
    made = ModuleType(MODULE)
    exec(ENABLES, vars(made))
    forced.apply(api.Patch("llamafactory-forced-reentrant", Journal()), made)
    return made


def enabled(module: Any, *said: Any) -> tuple[bool, bool]:
    model = Model()
    for each in said:
        module._gradient_checkpointing_enable(model, gradient_checkpointing_kwargs=each, use_unsloth_gc=True)
    return model.used


@pytest.mark.parametrize(
    ("said", "used"),
    [
        ([None], False),
        ([{"use_reentrant": False}, None], False),
        ([{"use_reentrant": True}, None], True),
        ([{"use_reentrant": True}, {"use_reentrant": False}, None], False),
        ([{"use_reentrant": False}, {"use_reentrant": True}], True),
    ],
)
def test_nothing_said_is_what_was_said_before(module: Any, said: list[Any], used: bool) -> None:
    assert enabled(module, *said) == (used, True)


def test_what_one_model_was_told_is_not_said_of_another(module: Any) -> None:
    assert enabled(module, {"use_reentrant": True}) == (True, True)
    assert enabled(module, None) == (False, True)


def test_look_asks_for_the_method_that_takes_none_for_true() -> None:
    def look(source: str) -> str | None:
        found: str | None = forced.look(api.Code(MODULE, "checkpointing.py", source))
        return found

    assert look(ENABLES) is None
    assert look(ENABLES.replace("True", "False"))
    assert look("def other(): ...")
