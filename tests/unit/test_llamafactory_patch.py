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


blank: Any = importlib.import_module("vlmpatch.patches.llamafactory.llamafactory_texts_beside_a_blank")
COLLATOR = """
class MultiModalDataCollatorForSeq2Seq:
    def _compute_rope_position_ids_with_packing(self, features, mm_inputs):
        zeros = dummy_image_right_padding_attention_mask
        features["attention_mask"] = cat([features["attention_mask"], zeros])
"""


def look_at_collator(source: str) -> str | None:
    found: str | None = blank.look(api.Code("llamafactory.data.collator", "collator.py", source))
    return found


def test_zeros_put_behind_the_mask_twice_are_known() -> None:
    assert look_at_collator(COLLATOR) is None
    assert look_at_collator(COLLATOR.replace(blank.TWICE, "other")) == "a mask is left as long as its row"
    before = "this LLaMA-Factory makes no positions of packed texts"
    assert look_at_collator("class MultiModalDataCollatorForSeq2Seq:\n    pass\n") == before


class Numbers(list[int]):
    @property
    def shape(self) -> tuple[int]:
        return (len(self),)


@pytest.mark.parametrize(("had", "made", "has"), [(4, 6, 4), (4, 4, 4), (3, 5, 5), (4, None, 4)])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_mask_stays_as_long_as_its_row(had: int, made: int | None, has: int, by_name: bool) -> None:
    class Collator:
        def _compute_rope_position_ids_with_packing(self, features: Any, mm_inputs: Any) -> str:
            assert mm_inputs == "images"
            if made is not None:
                features[blank.MASK] = Numbers([0] * made)
            return "made"

    module: Any = ModuleType("llamafactory.data.collator")
    setattr(module, blank.KIND, Collator)
    blank.apply(api.Patch("llamafactory-texts-beside-a-blank", Journal()), module)
    mask = Numbers([1] * had)
    features = {blank.ROWS: Numbers([7] * 4), blank.MASK: mask}
    call: Any = Collator()._compute_rope_position_ids_with_packing
    said = call(features=features, mm_inputs="images") if by_name else call(features, "images")
    assert said == "made"
    assert len(features[blank.MASK]) == has
    assert (features[blank.MASK] is mask) == (made in (None, 6))
