"""Labels that are smoothed are shifted where nothing else has shifted them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.transformers.smoothed_labels_shifted")

SOURCE = """
class Trainer:
    def _prepare_inputs(self, inputs):
        pass

    def compute_loss(self, model, inputs):
        if model_name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            loss = self.label_smoother(outputs, labels, shift_labels=True)
        else:
            loss = self.label_smoother(outputs, labels)
"""


class Row:
    """As much of a tensor as this goes."""

    def __init__(self, values: Iterable[Any], batch: int = 1) -> None:
        self.values = list(values)
        self.shape = (batch, len(self.values))

    def __ne__(self, other: object) -> Any:
        return Row(value != other for value in self.values)

    def __eq__(self, other: object) -> Any:
        assert isinstance(other, Row)
        return Row(a == b for a, b in zip(self.values, other.values, strict=True))

    def __getitem__(self, kept: Row) -> Row:
        return Row(value for value, keep in zip(self.values, kept.values, strict=True) if keep)

    def all(self) -> bool:
        return all(self.values)

    def any(self) -> bool:
        return any(self.values)


class LlavaCausalLMOutputWithPast(SimpleNamespace):
    """What a vision-language model returns."""


class Seq2SeqLMOutput(SimpleNamespace):
    """What an encoder and decoder returns."""


class Smoother:
    """The Trainer's; it says whether it was to shift."""

    __hash__ = None  # type: ignore[assignment]  # it is a dataclass

    def __call__(self, model_output: Any, labels: Any, shift_labels: bool = False) -> bool:
        return shift_labels


class Trainer:
    """transformers', as far as this goes."""

    def __init__(self) -> None:
        self.label_smoother = type(self).smoother()

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs

    smoother: Any = None


def trainer(module: str = "transformers.trainer") -> tuple[Any, Any]:
    """A Trainer that is patched, and ms-swift's of the same smoother."""
    smoother = type("LabelSmoother", (Smoother,), {"__call__": Smoother.__call__, "__hash__": None})
    base = type("Trainer", (Trainer,), {"_prepare_inputs": Trainer._prepare_inputs, "smoother": smoother})

    def cut(self: Any, inputs: Any) -> Any:
        found = super(swift, self)._prepare_inputs(inputs)
        return {**found, **self.changed}

    swift: Any = type("Seq2SeqTrainer", (base,), {"_prepare_inputs": cut, "changed": {}})
    transformers, other = ModuleType("transformers.trainer"), ModuleType(patch.SWIFT)
    vars(transformers).update(Trainer=base, LabelSmoother=smoother)
    vars(other)["Seq2SeqTrainer"] = swift
    given = api.Patch("smoothed-labels-shifted", Journal())
    patch.apply(given, transformers)
    patch.apply(given, other)
    return base(), swift()


TOKENS = [5, 6, 7, 8]
LEARNED = [-100, 6, 7, 8]


def shifted(labels: list[int], output: type = LlavaCausalLMOutputWithPast, logits: int = 4) -> bool:
    own, _ = trainer()
    batch = own._prepare_inputs({"input_ids": Row(TOKENS), "labels": Row(labels)})
    said: bool = own.label_smoother(output(logits=SimpleNamespace(shape=(1, logits, 9))), batch["labels"])
    return said


@pytest.mark.parametrize(("labels", "said"), [(LEARNED, True), ([6, 7, 8, -100], False), ([-100] * 4, False)])
def test_labels_that_are_the_batchs_tokens_are_shifted(labels: list[int], said: bool) -> None:
    assert shifted(labels) is said


def test_what_is_no_causal_models_is_left_alone() -> None:
    assert not shifted(LEARNED, Seq2SeqLMOutput)
    assert not shifted(LEARNED, logits=6)  # with virtual tokens before it


def test_what_a_script_made_of_them_is_left_alone() -> None:
    own, _ = trainer()
    batch = own._prepare_inputs({"input_ids": Row(TOKENS), "labels": Row(LEARNED)})
    outputs = LlavaCausalLMOutputWithPast(logits=SimpleNamespace(shape=(1, 4, 9)))
    assert own.label_smoother(outputs, batch["labels"])
    assert not own.label_smoother(outputs, Row(LEARNED))
    assert not own.label_smoother(model_output=outputs, labels=Row(LEARNED), shift_labels=False)
    assert own.label_smoother(outputs, Row(LEARNED), True)


def test_a_batch_without_a_label_tells_nothing() -> None:
    own, _ = trainer()
    own._prepare_inputs({"input_ids": Row(TOKENS), "labels": Row([-100] * 4)})
    own._prepare_inputs({"labels": Row(LEARNED)})
    batch = own._prepare_inputs({"input_ids": Row(TOKENS), "labels": Row(LEARNED)})
    assert own.label_smoother(
        LlavaCausalLMOutputWithPast(logits=SimpleNamespace(shape=(1, 4, 9))), batch["labels"]
    )


@pytest.mark.parametrize(("more", "said"), [({"logits_to_keep": 3}, True), ({}, False)])
def test_ms_swifts_labels_are_known_where_it_has_cut_them(more: dict[str, int], said: bool) -> None:
    _, swift = trainer()
    swift.changed = {
        "labels": Row(LEARNED[1:]),
        **more,
    }  # without it: its sequence parallelism, which moves them
    batch = swift._prepare_inputs({"input_ids": Row(TOKENS), "labels": Row(LEARNED)})
    outputs = LlavaCausalLMOutputWithPast(logits=SimpleNamespace(shape=(1, 3, 9)))
    assert swift.label_smoother(outputs, batch["labels"]) is said


def test_a_trainer_that_smooths_nothing_is_not_looked_at() -> None:
    own, _ = trainer()
    own.label_smoother = None
    assert own._prepare_inputs(None) is None


def test_the_list_of_classes_is_looked_for() -> None:
    def look(text: str, module: str = "transformers.trainer") -> str | None:
        found: str | None = patch.look(api.Code(module, "trainer.py", text))
        return found

    assert look(SOURCE) is None
    assert look("", patch.SWIFT) is None
    assert "no smoothed labels" in str(look(SOURCE.replace("shift_labels=True", "shift_labels=shifts")))
    assert "list of classes" in str(look(SOURCE.replace("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "KNOWN")))
    with pytest.raises(api.Unrecognised):
        look("class Trainer:\n    pass\n")
