"""What the patches for the field's failures take for theirs, and what they leave alone."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import catalog
from vlmpatch.api import Patch
from vlmpatch.engine import load
from vlmpatch.journal import Journal

ENTRIES = catalog.read(catalog.default_path()).entries


def patch_file(id_: str) -> Any:
    module = load(ENTRIES[id_])
    return importlib.import_module(module.__name__)


def upstreams_hook() -> Callable[..., Any]:
    def make_inputs_require_grads(module: Any, input: Any, output: Any) -> None:
        output.requires_grad_(True)

    return make_inputs_require_grads


def hook_of_another_name() -> Callable[..., Any]:
    def watch(module: Any, input: Any, output: Any) -> None:
        output.requires_grad_(True)

    return watch


def hook_that_keeps_the_leaf() -> Callable[..., Any]:
    kept = []

    def make_inputs_require_grads(module: Any, input: Any, output: Any) -> None:
        output.requires_grad_(True)
        kept.append(output)

    return make_inputs_require_grads


@pytest.mark.parametrize(
    ("hook", "taken"),
    [
        (upstreams_hook(), True),
        (hook_of_another_name(), False),
        (hook_that_keeps_the_leaf(), False),
        (print, False),
    ],
)
def test_which_hooks_hand_on_a_copy(hook: Callable[..., Any], taken: bool) -> None:
    assert patch_file("input-grads-leaf")._lets_require_grad(hook) is taken


def takes_nothing_new(self: Any, model: Any, inputs: Any, return_outputs: bool = False) -> None: ...


def takes_the_count(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None: ...


def takes_anything(self: Any, model: Any, inputs: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("method", "takes"), [(takes_nothing_new, False), (takes_the_count, True), (takes_anything, True)]
)
def test_which_compute_loss_is_called_without_the_count(method: Callable[..., Any], takes: bool) -> None:
    assert patch_file("overridden-compute-loss").takes_count(method) is takes


def test_a_script_that_another_program_runs_is_found(tmp_path: Path) -> None:
    script = tmp_path / "finetune" / "finetune.py"
    script.parent.mkdir()
    script.write_text("found = folders()")
    folders = patch_file("trainer-star-import-names")._importing_folders
    ran = runpy.run_path(str(script), init_globals={"folders": folders})
    assert ran["found"][0] == str(script.parent)


FORM_4_46 = (
    "self.accelerator.backward(loss)\nif num_items_in_batch is None:\n"
    "return loss.detach() / self.args.gradient_accumulation_steps"
)
FORM_4_49 = (
    "if not self.model_accepts_loss_kwargs and self.compute_loss_func is None:\nloss = loss / 4\n"
    'kwargs["scale_wrt_gas"] = False'
)


@pytest.mark.parametrize(
    ("source", "accepts", "deepspeed", "count", "counted", "wanted"),
    [
        (FORM_4_46, False, False, None, False, (0.25, 1.0)),
        (FORM_4_46, True, False, 9, True, (1.0, 1.0)),
        (FORM_4_46, True, True, 9, True, (4.0, 1.0)),
        (FORM_4_46, False, True, None, False, (1.0, 1.0)),
        (FORM_4_49, False, False, 9, False, (1.0, 1.0)),
        (FORM_4_49, True, True, None, False, (0.25, 0.25)),
        (FORM_4_49, True, True, 9, True, (1.0, 1.0)),
    ],
)
def test_what_an_accumulated_loss_is_multiplied_by(
    source: str, accepts: bool, deepspeed: bool, count: Any, counted: bool, wanted: tuple[float, float]
) -> None:
    file = patch_file("accumulated-loss-undivided")
    trainer = SimpleNamespace(
        args=SimpleNamespace(gradient_accumulation_steps=4),
        accelerator=SimpleNamespace(gradient_accumulation_steps=1),
        model_accepts_loss_kwargs=accepts,
        compute_loss_func=None,
        is_deepspeed_enabled=deepspeed,
    )
    assert file.factors(file.read(source), trainer, count, counted) == wanted


class Mixin:
    def prepare_inputs_for_generation(self) -> None: ...


class Pretrained: ...


class OfTransformers(Pretrained):
    __module__ = "transformers.models.bert.modeling_bert"


class OwnCode(Pretrained): ...


class OwnInputs(OwnCode):
    def prepare_inputs_for_generation(self) -> None: ...


@pytest.mark.parametrize(
    ("model", "lent"), [(OwnCode, True), (OwnInputs, False), (OfTransformers, False), (Mixin, False)]
)
def test_which_models_peft_is_lent_a_method_for(
    model: type, lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = SimpleNamespace(GenerationMixin=Mixin, PreTrainedModel=Pretrained)
    monkeypatch.setitem(sys.modules, "transformers", upstream)
    assert bool(patch_file("peft-generation-inputs").missing(model())) is lent


def test_nothing_lent_stays_on_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = SimpleNamespace(GenerationMixin=Mixin, PreTrainedModel=Pretrained)
    monkeypatch.setitem(sys.modules, "transformers", upstream)
    module: Any = ModuleType("peft.peft_model")

    class Tuned:
        def __init__(self, model: Any) -> None:
            self.kept = model.prepare_inputs_for_generation

    module.PeftModelForCausalLM = module.PeftModelForSeq2SeqLM = Tuned
    patch_file("peft-generation-inputs").apply(Patch("p", Journal()), module)
    assert Tuned(OwnCode()).kept.__func__ is Mixin.prepare_inputs_for_generation
    assert not hasattr(OwnCode, "prepare_inputs_for_generation")
