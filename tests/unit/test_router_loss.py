"""The routers' loss of a step is its mean over batches and ranks."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.transformers.router_loss_counted")

CROSS, AUX, WEIGHT = 2.0, 8.0, 0.5
SOURCE = """
class Trainer:
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = outputs["loss"]
        if self.args.average_tokens_across_devices:
            loss *= self.accelerator.num_processes
        return loss
"""


class Loss(float):
    """A tensor, as far as this goes."""

    device = "cpu"

    def to(self, device: str) -> Loss:
        return self


class Experts:
    """A model whose routers have a loss."""

    training = True

    def __init__(self) -> None:
        self.config = SimpleNamespace(text_config=SimpleNamespace(router_aux_loss_coef=WEIGHT))

    def forward(self) -> Any:
        loss, aux_loss = CROSS, Loss(AUX)
        loss += self.config.text_config.router_aux_loss_coef * aux_loss.to("cpu")
        return {"loss": loss, "aux_loss": aux_loss}


class Counting(Experts):
    """One whose ``forward`` divides by the number of tokens itself."""

    def forward(self, num_items_in_batch: Any = None) -> Any:
        loss, aux_loss = CROSS, Loss(AUX)
        loss += self.config.text_config.router_aux_loss_coef * aux_loss.to("cpu")
        return {"loss": loss, "aux_loss": aux_loss}


class Silent(Experts):
    """One that was not asked for what its routers say."""

    def forward(self) -> Any:
        loss, aux_loss = CROSS, Loss(AUX)
        if self.training is None:
            loss += self.config.text_config.router_aux_loss_coef * aux_loss.to("cpu")
        return {"loss": loss}


class Plain(Experts):
    """One without experts."""

    def forward(self) -> Any:
        return {"loss": CROSS}


class Trainer:
    """transformers', as far as this goes."""

    model_accepts_loss_kwargs = True
    label_smoother: Any = None
    compute_loss_func: Any = None

    def __init__(self, steps: int = 1, ranks: int = 1, **said: Any) -> None:
        known = {"gradient_accumulation_steps": steps, "average_tokens_across_devices": ranks > 1, "n_gpu": 1}
        self.args = SimpleNamespace(**{**known, **said})
        self.accelerator = SimpleNamespace(num_processes=ranks, unwrap_model=lambda model: model)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model.forward()
        times = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        loss = Loss(outputs["loss"] * times)
        return (loss, outputs) if return_outputs else loss


@pytest.fixture
def trainer() -> Any:
    """Its class, patched."""
    made: Any = type("Trainer", (Trainer,), {"compute_loss": Trainer.compute_loss})
    module = ModuleType("transformers.trainer")
    vars(module)["Trainer"] = made
    patch.apply(api.Patch("router-loss-counted", Journal()), module)
    return made


def loss_of(trainer: Any, model: Any, **more: Any) -> Any:
    return trainer.compute_loss(model, {}, **{"num_items_in_batch": 4, **more})


def test_a_step_has_its_mean(trainer: Any) -> None:
    assert loss_of(trainer(steps=4), Experts()) == CROSS + WEIGHT * AUX / 4
    assert loss_of(trainer(ranks=2), Experts()) == 2 * CROSS + WEIGHT * AUX
    assert loss_of(trainer(steps=4, ranks=2), Experts()) == 2 * CROSS + WEIGHT * AUX / 4
    with_outputs = loss_of(trainer(steps=4), Experts(), return_outputs=True)
    assert with_outputs == (CROSS + WEIGHT * AUX / 4, {"loss": CROSS + WEIGHT * AUX, "aux_loss": AUX})


def test_a_short_window_and_an_evaluation_are_what_they_are(trainer: Any) -> None:
    short = trainer(steps=4)
    short.current_gradient_accumulation_steps = 2
    assert loss_of(short, Experts()) == CROSS + WEIGHT * AUX / 2
    evaluated = Experts()
    evaluated.training = False
    assert loss_of(trainer(steps=4, ranks=2), evaluated) == 2 * CROSS + WEIGHT * AUX


def test_adapters_and_compilers_are_looked_through(trainer: Any) -> None:
    adapted = SimpleNamespace(get_base_model=Experts, training=True, forward=Experts().forward)
    compiled = SimpleNamespace(_orig_mod=adapted, training=True, forward=Experts().forward)
    assert loss_of(trainer(steps=4), compiled) == CROSS + WEIGHT * AUX / 4


def test_tensor_parallel_ranks_are_no_ranks_of_their_own() -> None:
    asked = SimpleNamespace(
        args=SimpleNamespace(average_tokens_across_devices=True),
        accelerator=SimpleNamespace(num_processes=8),
        get_tp_size=lambda: 4,
    )
    assert (patch.ranks_of(asked, dense=True), patch.ranks_of(asked, dense=False)) == (2, 8)


def test_what_has_no_such_loss_is_left_alone(trainer: Any) -> None:
    whole = CROSS + WEIGHT * AUX
    assert loss_of(trainer(), Experts()) == whole  # one batch
    assert loss_of(trainer(steps=4), Counting()) == whole
    assert loss_of(trainer(steps=4), Silent()) == loss_of(trainer(steps=4), Plain()) == CROSS
    assert loss_of(trainer(steps=4), Experts(), num_items_in_batch=None) == whole
    assert loss_of(trainer(steps=4, n_gpu=2), Experts()) == whole


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_accepts_loss_kwargs", False),
        ("label_smoother", len),
        ("compute_loss_func", len),
        ("loss_is_scaled_for_ga", False),
    ],
)
def test_a_loss_that_is_not_the_models_is_left_alone(trainer: Any, name: str, value: Any) -> None:
    asked = trainer(steps=4)
    setattr(asked, name, value)
    assert loss_of(asked, Experts()) == CROSS + WEIGHT * AUX


def test_so_is_a_row_that_is_spread(trainer: Any) -> None:
    asked = trainer(steps=4)
    asked.accelerator.parallelism_config = SimpleNamespace(sp_enabled=True)
    assert loss_of(asked, Experts()) == CROSS + WEIGHT * AUX


def test_a_script_that_weighs_it_itself_is_left_alone(trainer: Any) -> None:
    class Weighing(trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss, outputs = super().compute_loss(*args, return_outputs=True, **kwargs)
            return loss - outputs["aux_loss"] * WEIGHT

    class Dividing(trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs) / self.args.gradient_accumulation_steps

    class Noting(trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss, outputs = super().compute_loss(*args, return_outputs=True, **kwargs)
            self.noted = outputs["aux_loss"]
            return loss

    assert loss_of(Weighing(steps=4), Experts()) == CROSS
    assert loss_of(Dividing(steps=4), Experts()) == (CROSS + WEIGHT * AUX) / 4
    assert loss_of(Noting(steps=4), Experts()) == CROSS + WEIGHT * AUX / 4


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("", "", None),
        (", num_items_in_batch=None", "", "compute_loss is given no num_items_in_batch"),
        ("return loss", "return loss - aux_loss", "compute_loss weighs aux_loss itself"),
    ],
)
def test_a_release_that_does_is_told(old: str, new: str, reason: str | None) -> None:
    code = api.Code("transformers.trainer", "trainer.py", SOURCE.replace(old, new) if old else SOURCE)
    assert patch.look(code) == reason


def test_what_no_release_has_is_not_guessed() -> None:
    for source in ("class Trainer: ...", SOURCE.replace("loss *= ", "loss = loss * ")):
        with pytest.raises(api.Unrecognised):
            patch.look(api.Code("transformers.trainer", "trainer.py", source))
