"""What axolotl fills in for a configuration that says nothing of use_reentrant."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

axolotl_forced_reentrant: Any = importlib.import_module("vlmpatch.patches.axolotl.axolotl_forced_reentrant")
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
