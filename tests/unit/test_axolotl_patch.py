"""What axolotl fills in for a configuration that says nothing of use_reentrant, or of unused parameters."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

axolotl_forced_reentrant: Any = importlib.import_module("vlmpatch.patches.axolotl.axolotl_forced_reentrant")
unused_parts: Any = importlib.import_module("vlmpatch.patches._shared.unused_parts")
unused: Any = importlib.import_module("vlmpatch.patches.axolotl.axolotl_unused_parameters")
SOURCE = """
class Configuration(dict):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__

def normalize_config(cfg):
    cfg.normalized = True
    if cfg.gradient_checkpointing and cfg.gradient_checkpointing_kwargs is None and cfg.rl is None:
        cfg.gradient_checkpointing_kwargs = {"use_reentrant": True}
"""


def look(source: str) -> Any:
    return axolotl_forced_reentrant.look(api.Code("axolotl.utils.config", "__init__.py", source))


@pytest.mark.parametrize(
    ("said", "used"),
    [
        ({}, {"use_reentrant": False}),
        ({"gradient_checkpointing_kwargs": None}, {"use_reentrant": False}),
        ({"gradient_checkpointing_kwargs": {"use_reentrant": True}}, {"use_reentrant": True}),
        ({"rl": "dpo"}, None),
    ],
)
def test_what_is_filled_in(said: dict[str, Any], used: dict[str, bool] | None) -> None:
    module = ModuleType("axolotl.utils.config")
    exec(SOURCE, vars(module))
    axolotl_forced_reentrant.apply(api.Patch("axolotl-forced-reentrant", Journal()), module)
    cfg = vars(module)["Configuration"](gradient_checkpointing=True, **said)
    vars(module)["normalize_config"](cfg)
    assert cfg["normalized"]
    assert cfg.get("gradient_checkpointing_kwargs") == used


def test_only_code_that_fills_it_in_is_changed() -> None:
    assert look(SOURCE) is None
    assert look(SOURCE.replace("True}", "False}")) == "axolotl leaves use_reentrant alone here"
    with pytest.raises(api.Unrecognised):
        look("x = 1")


class Configuration(dict[str, Any]):
    __getattr__ = dict.get


def builder() -> Any:
    """Its module, as far as the patch knows it; the hook is of the class that both builders inherit."""
    module = ModuleType("axolotl.core.builders.causal")
    exec(BUILDER, vars(module))
    unused.apply(api.Patch("axolotl-unused-parameters", Journal()), module)
    return module


BUILDER = """
from types import SimpleNamespace

class TrainerBuilderBase:
    def hook_post_create_training_args(self, training_arguments):
        return training_arguments

class HFCausalTrainerBuilder(TrainerBuilderBase):
    def build(self, total_num_steps):
        return self.hook_post_create_training_args(
            SimpleNamespace(
                ddp_find_unused_parameters=bool(self.cfg.ddp_find_unused_parameters),
                gradient_checkpointing_kwargs=self.cfg.gradient_checkpointing_kwargs,
            )
        )

class HFRLTrainerBuilder(TrainerBuilderBase):
    pass
"""
KWARGS, SEARCH = "gradient_checkpointing_kwargs", "ddp_find_unused_parameters"
REENTRANT = {KWARGS: {"use_reentrant": True}}


def parameters_of(*names: str) -> Any:
    """A model with a tower that trains these."""
    return SimpleNamespace(
        config=SimpleNamespace(vision_config={}),
        named_parameters=lambda: [(name, SimpleNamespace(requires_grad=True)) for name in names],
        modules=list,
    )


TOWER, TEXT = parameters_of("vision_tower.weight"), parameters_of("language_model.weight")


@pytest.mark.parametrize(
    ("said", "model", "told"),
    [
        ({"gradient_checkpointing": True}, TOWER, None),
        ({}, TOWER, None),
        ({}, TEXT, False),
        ({SEARCH: False}, TOWER, False),
        ({SEARCH: True}, TEXT, True),
        ({"gradient_checkpointing": True, **REENTRANT}, TOWER, False),
        (REENTRANT, TOWER, None),
        ({"gradient_checkpointing": True, "activation_offloading": "legacy"}, TOWER, False),
        ({"gradient_checkpointing": "offload"}, TOWER, False),
    ],
)
def test_what_the_trainer_is_told(
    said: dict[str, Any], model: Any, told: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused_parts, "sparse_blocks", lambda model: iter(()))
    made = builder().HFCausalTrainerBuilder()
    made.cfg, made.model = Configuration(said), model
    assert made.build(1).ddp_find_unused_parameters is told


def test_another_builder_is_left_alone() -> None:
    made = builder().HFRLTrainerBuilder()
    made.cfg, made.model = Configuration(), TOWER
    arguments = SimpleNamespace(ddp_find_unused_parameters=False, gradient_checkpointing_kwargs=None)
    assert made.hook_post_create_training_args(arguments).ddp_find_unused_parameters is False


def test_only_a_builder_that_makes_a_false_of_nothing_said_is_changed() -> None:
    def look(source: str) -> Any:
        return unused.look(api.Code("axolotl.core.builders.causal", "causal.py", source))

    assert look(BUILDER) is None
    silent = BUILDER.replace("bool(self.cfg.ddp_find_unused_parameters)", "None")
    assert look(silent) == "axolotl leaves ddp_find_unused_parameters alone here"
    with pytest.raises(api.Unrecognised):
        look("x = 1")
