"""A loss of ms-swift's own is divided in training, and in an evaluation nothing is."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.swift.swift_own_loss_undivided")

STEPS, CURRENT = 4, 2
MODULE = "swift.trainers.trainer"
TRAINED, EVALUATED = SimpleNamespace(training=True), SimpleNamespace(training=False)


class Base:
    """ms-swift's, as far as this goes."""

    compute_loss_func: Any = None

    def __init__(self, takes: bool, own: bool) -> None:
        self.model_accepts_loss_kwargs = takes
        self.compute_loss_func = len if own else None
        self.args = SimpleNamespace(gradient_accumulation_steps=STEPS)
        self.current_gradient_accumulation_steps = CURRENT


class Trainer(Base):
    __module__ = MODULE

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss = 8.0
        if num_items_in_batch is not None and self.model_accepts_loss_kwargs:
            steps = getattr(
                self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps
            )
            loss = loss / steps
        return (loss, inputs) if return_outputs else loss


class Older(Base):
    __module__ = MODULE

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss = 8.0
        if num_items_in_batch is not None and self.model_accepts_loss_kwargs:
            loss /= self.args.gradient_accumulation_steps
        return (loss, inputs) if return_outputs else loss


class RerankerTrainer(Trainer):
    __module__ = MODULE

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if self.compute_loss_func is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss = 8.0
        if num_items_in_batch is not None and self.model_accepts_loss_kwargs:
            steps = getattr(
                self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps
            )
            loss = loss / steps
        return (loss, inputs) if return_outputs else loss


def made(cls: type, name: str) -> Any:
    """The class as it is in a module that was patched."""
    found: Any = type(name, (cls,), {"__module__": MODULE, "compute_loss": vars(cls)["compute_loss"]})
    module = ModuleType(MODULE)
    vars(module)[name] = found
    patch.apply(api.Patch("swift-own-loss-undivided", Journal()), module)
    return found


@pytest.mark.parametrize(
    ("takes", "own", "trained", "evaluated"),
    [
        (True, True, 4.0, 8.0),
        (False, True, 4.0, 8.0),  # trained with 8 before
        (True, False, 4.0, 8.0),
        (False, False, 8.0, 8.0),  # the Trainer divides
    ],
)
def test_a_loss_is_divided_once_and_in_training(
    takes: bool, own: bool, trained: float, evaluated: float
) -> None:
    trainer = made(Trainer, "Trainer")(takes, own)
    assert trainer.compute_loss(TRAINED, {}, num_items_in_batch=3) == trained
    assert trainer.compute_loss(TRAINED, {}, True, 3) == (trained, {})
    assert trainer.compute_loss(EVALUATED, {}, num_items_in_batch=3) == evaluated
    assert trainer.compute_loss(EVALUATED, {}) == 8.0


def test_an_older_release_divides_by_what_was_asked_for() -> None:
    trainer = made(Older, "Trainer")(takes=False, own=True)
    assert trainer.compute_loss(TRAINED, {}, num_items_in_batch=3) == 8.0 / STEPS
    taking = made(Older, "Trainer")(takes=True, own=True)
    assert taking.compute_loss(EVALUATED, {}, num_items_in_batch=3) == 8.0


@pytest.mark.parametrize("takes", [True, False])
def test_a_reranker_with_a_loss_of_its_own(takes: bool) -> None:
    trainer = made(RerankerTrainer, "RerankerTrainer")(takes, own=True)
    assert trainer.compute_loss(TRAINED, {}, num_items_in_batch=3) == 4.0
    assert trainer.compute_loss(EVALUATED, {}, num_items_in_batch=3) == 8.0


class Told:
    """A plugin's loss, which divides by the number itself."""

    def __call__(self, outputs: Any, labels: Any, *, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        return outputs / num_items_in_batch


def told(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return outputs / num_items_in_batch


class Untold:
    def __call__(self, outputs: Any, labels: Any, *, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        return outputs


@pytest.mark.parametrize(
    ("loss", "divided"),
    [(Told(), 8.0), (told, 8.0), (functools.partial(told), 8.0), (Untold(), 4.0), (len, 4.0)],
)
def test_a_loss_that_divides_by_the_number_of_labels_is_left_alone(loss: Any, divided: float) -> None:
    trainer = made(RerankerTrainer, "RerankerTrainer")(takes=False, own=True)
    trainer.compute_loss_func = loss
    assert trainer.compute_loss(TRAINED, {}, num_items_in_batch=3) == divided
    assert trainer.compute_loss(TRAINED, {}) == 4.0  # it is handed none
    embedding = made(Trainer, "Trainer")(takes=False, own=True)
    embedding.compute_loss_func = loss
    assert embedding.compute_loss(TRAINED, {}, num_items_in_batch=3) == 4.0  # nor here, in any case


def test_without_accumulation_the_loss_is_the_very_object() -> None:
    trainer = made(Trainer, "Trainer")(takes=False, own=True)
    trainer.args.gradient_accumulation_steps = trainer.current_gradient_accumulation_steps = 1
    assert trainer.compute_loss(TRAINED, {}, num_items_in_batch=3) == 8.0


def test_a_release_that_divides_otherwise_is_told() -> None:
    source = f"""
class Trainer:
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        {patch.DIVIDES}
            loss = loss / 2
        return loss
"""
    assert patch.look(api.Code(MODULE, "trainer.py", source)) is None
    other = source.replace(" and self.model_accepts_loss_kwargs", "")
    assert (
        patch.look(api.Code(MODULE, "trainer.py", other)) == "no compute_loss divides by what the model takes"
    )
