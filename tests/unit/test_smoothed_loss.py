"""A smoothed loss is divided by the tokens of all that it is a part of."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.transformers.smoothed_loss_counted")

SOURCE = """
class Trainer:
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = self.label_smoother(outputs, labels, shift_labels=True)
"""


class Row:
    """As much of a tensor as this goes."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __getitem__(self, kept: tuple[Any, slice]) -> Row:
        return Row(*self.values[kept[1]])

    def __ne__(self, other: object) -> Any:
        return Row(*(value != other for value in self.values))

    def sum(self) -> int:
        return sum(self.values)


class Smoother:
    """The Trainer's; its loss is a mean of nothing in particular."""

    __hash__ = None  # type: ignore[assignment]  # it is a dataclass
    ignore_index = -100

    def __call__(
        self, model_output: Any, labels: Any, shift_labels: bool = False, num_items_in_batch: Any = None
    ) -> float:
        return 1.0


class Trainer:
    """transformers', as far as this goes."""

    model_accepts_loss_kwargs = True
    template: Any = SimpleNamespace(sequence_parallel_size=1)

    def __init__(self, smoother: Any, **said: Any) -> None:
        self.label_smoother = smoother
        known = {"gradient_accumulation_steps": 1, "average_tokens_across_devices": False, "world_size": 1}
        self.args = SimpleNamespace(**{**known, **said})

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return self.label_smoother(None, inputs, shift_labels=True)


LABELS = Row(-100, 5, 6, 7)
TRAINED, EVALUATED = SimpleNamespace(training=True), SimpleNamespace(training=False)


def made(monkeypatch: pytest.MonkeyPatch, name: str = "transformers.trainer", owner: str = "Trainer") -> Any:
    """A patched Trainer's class, and a smoother; its loss says by what it was divided."""
    monkeypatch.setattr(patch, "divided", lambda loss, learned, count: f"{learned} of {count:g}")
    smoother = type("LabelSmoother", (Smoother,), {"__call__": Smoother.__call__, "__hash__": None})
    base: Any = type(owner, (Trainer,), {"compute_loss": Trainer.compute_loss})
    home, module = ModuleType("transformers.trainer"), ModuleType(name)
    vars(home)["LabelSmoother"] = vars(module)["LabelSmoother"] = smoother
    vars(module)[owner] = base
    monkeypatch.setitem(sys.modules, "transformers.trainer", home)
    patch.apply(api.Patch("smoothed-loss-counted", Journal()), module)
    return lambda **said: base(smoother(), **said)


@pytest.mark.parametrize(
    ("said", "model", "loss"),
    [
        ({}, TRAINED, 1.0),
        ({"gradient_accumulation_steps": 4}, TRAINED, "3 of 12"),
        ({"gradient_accumulation_steps": 4}, EVALUATED, 1.0),
        ({"average_tokens_across_devices": True}, TRAINED, 1.0),
        ({"average_tokens_across_devices": True, "world_size": 2}, EVALUATED, "3 of 12"),
    ],
)
def test_a_loss_of_several_batches_is_divided_by_the_number_of_all(
    said: dict[str, Any], model: Any, loss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = made(monkeypatch)(**said)
    assert trainer.compute_loss(model, LABELS, num_items_in_batch=12) == loss
    assert trainer.compute_loss(model, LABELS) == 1.0
    assert trainer.label_smoother(None, LABELS) == 1.0  # which nobody gave a number


def test_a_part_of_a_row_is_divided_by_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(monkeypatch, "swift.trainers.seq2seq_trainer", "Seq2SeqTrainer")()
    trainer.template = SimpleNamespace(sequence_parallel_size=2)
    assert trainer.compute_loss(TRAINED, LABELS, num_items_in_batch=12) == "3 of 6"


def test_what_the_smoother_is_given_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def hands_on(self: Any, model: Any, inputs: Any, return_outputs: bool = False, count: Any = None) -> Any:
        return self.label_smoother(None, inputs, num_items_in_batch=5)

    monkeypatch.setattr(Trainer, "compute_loss", hands_on)
    trainer = made(monkeypatch)(gradient_accumulation_steps=4)
    assert trainer.compute_loss(TRAINED, LABELS, False, 12) == 1.0


def test_a_model_that_takes_no_number_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(monkeypatch)(gradient_accumulation_steps=4)
    trainer.model_accepts_loss_kwargs = False
    assert trainer.compute_loss(TRAINED, LABELS, num_items_in_batch=12) == 1.0


def test_a_script_that_divides_by_steps_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(monkeypatch)(gradient_accumulation_steps=4)

    class Dividing(type(trainer)):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs) / self.args.gradient_accumulation_steps

    trainer.__class__ = Dividing
    assert trainer.compute_loss(TRAINED, LABELS, num_items_in_batch=12) == 0.25


def test_a_loss_that_fails_leaves_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(monkeypatch)(gradient_accumulation_steps=4)
    with pytest.raises(TypeError):
        trainer.compute_loss(TRAINED, None, num_items_in_batch=12)
    assert trainer.label_smoother(None, LABELS) == 1.0


def test_the_number_is_looked_for() -> None:
    def look(text: str, module: str = "transformers.trainer") -> str | None:
        found: str | None = patch.look(api.Code(module, "trainer.py", text))
        return found

    assert look(SOURCE) is None
    given = "label_smoother(outputs, labels, num_items_in_batch=num_items_in_batch)"
    assert "hands it on" in str(
        look(SOURCE.replace("label_smoother(outputs, labels, shift_labels=True)", given))
    )
    assert "smooths no labels" in str(look(SOURCE.replace("label_smoother", "other")))
    assert "given no" in str(look(SOURCE.replace(", num_items_in_batch=None", "")))
    with pytest.raises(api.Unrecognised):
        look(SOURCE, "swift.trainers.seq2seq_trainer")
