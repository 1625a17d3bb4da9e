"""Which weights the loader for ZeRO-3 dropped, and which releases drop some."""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from vlmpatch import api

weights: Any = importlib.import_module("vlmpatch.patches.transformers.zero3_renamed_weights")
SOURCE = f"""
def {weights.NAME}(model, state_dict, weight_mapping):
    for original_key in state_dict:
        renamed_key, _ = rename_source_key(original_key, renamings, [], prefix, model_state_dict)
"""


def look(source: str) -> Any:
    return weights.look(api.Code("transformers.integrations.deepspeed", "deepspeed.py", source))


def test_the_bug_is_known() -> None:
    assert look(SOURCE) is None
    assert look("") == "no names are converted under ZeRO-3"
    kept = "        if original_key in model_state_dict:\n            pass\n"
    assert look(SOURCE + kept) == "names that need no conversion are kept"
    for old, new in (("rename_source_key(", "rename("), ("state_dict, weight_mapping", "weights")):
        with pytest.raises(api.Unrecognised):
            look(SOURCE.replace(old, new))


class Renaming:
    """One of ``pattern`` into ``target``."""

    def __init__(self, pattern: str, target: str) -> None:
        self.pattern, self.target = pattern, target


class Converter(Renaming):
    """Of what is merged."""


def rename(
    key: str, renamings: list[Any], converters: list[Any], prefix: str, owned: Any
) -> tuple[str, str | None]:
    """As transformers does it, with the prefix of a base model."""
    for each in renamings:
        key = re.sub(each.pattern, each.target, key)
    source = next((each.pattern for each in converters if re.search(each.pattern, key)), None)
    for each in converters:
        key = re.sub(each.pattern, each.target, key)
    return (f"{prefix}.{key}" if f"{prefix}.{key}" in owned else key), source


@pytest.fixture(autouse=True)
def transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = types.ModuleType("transformers.core_model_loading")
    core.WeightRenaming, core.WeightConverter, core.rename_source_key = Renaming, Converter, rename
    stand_in: Any = types.ModuleType("transformers")
    stand_in.core_model_loading = core
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    monkeypatch.setitem(sys.modules, "transformers.core_model_loading", core)


class Model:
    base_model_prefix = "model"

    def __init__(self, *names: str) -> None:
        self.names = names

    def state_dict(self) -> dict[str, Any]:
        return dict.fromkeys(self.names, "empty")


TEXT_ALONE = [Renaming(r"^model\.language_model\.", "model.")]
MERGED = [Converter(r"\.\d+\.up", ".ups")]


def converted(original: Any, model: Model, read: dict[str, Any], mapping: list[Any]) -> Any:
    wraps: dict[str, Any] = {}
    patch: Any = types.SimpleNamespace(wrap=lambda _, name, wrapper: wraps.setdefault(name, wrapper))
    weights.apply(patch, types.ModuleType("module"))
    return wraps[weights.NAME](original, model, state_dict=read, weight_mapping=mapping)


def test_a_name_that_should_have_stayed_stays() -> None:
    model = Model("model.language_model.norm", "model.visual.norm")
    found = OrderedDict({"model.visual.norm": 2})
    read = {"model.language_model.norm": 1, "model.visual.norm": 2}
    got = converted(lambda *_, **__: found, model, read, TEXT_ALONE)
    assert got is found
    assert got == {"model.language_model.norm": 1, "model.visual.norm": 2}


def test_what_is_not_merged_is_loaded_whatever_empties_what_was_read() -> None:
    def original(model: Any, state_dict: Any, weight_mapping: Any) -> dict[str, Any]:
        state_dict.clear()
        return {"model.experts.ups": "merged"}

    read = {"model.experts.0.up": 1, "model.experts.1.up": 2, "norm": 3, "of another model": 4}
    got = converted(original, Model("model.experts.ups", "model.norm"), read, MERGED)
    assert got == {"model.experts.ups": "merged", "model.norm": 3}


def test_what_was_loaded_is_what_the_original_says() -> None:
    model = Model("model.norm", "model.language_model.norm")
    found = {"model.norm": "converted"}
    got = converted(lambda *_, **__: found, model, {"model.language_model.norm": "read"}, TEXT_ALONE)
    assert got == {"model.norm": "converted"}


def test_parts_are_handed_on_as_they_come() -> None:
    first, last = {"model.experts.ups": "merged"}, {"model.norm": 3}

    def original(*_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield first
        yield last

    model = Model("model.experts.ups", "model.norm", "model.language_model.norm")
    read = {"model.experts.0.up": 1, "model.norm": 3}
    parts = list(converted(original, model, read, MERGED))
    assert [id(part) for part in parts] == [id(first), id(last)]
    more = Model(*model.names, "visual.language_model.norm")
    read["visual.language_model.norm"] = 4
    dropping = [*MERGED, Renaming("^visual.language_model", "visual.text")]
    assert list(converted(original, more, read, dropping)) == [first, last, {"visual.language_model.norm": 4}]
