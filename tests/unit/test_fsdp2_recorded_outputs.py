"""What a class that FSDP2 makes can record: which forms are known, and whose is found."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest

from vlmpatch import api

outputs: Any = importlib.import_module("vlmpatch.patches.transformers.fsdp2_recorded_outputs")
MODELS, LISTS = "transformers.modeling_utils", "transformers.utils.output_capturing"
BUILT = "class PreTrainedModel:\n    def __init__(self):\n        {}\n"
ASKED = "class _CanRecordRegistry(dict):\n    def get(self, model):\n        return super().get({})\n"


def look(module: str, source: str) -> Any:
    return outputs.look(api.Code(module, "file.py", source))


def test_each_form_is_known() -> None:
    assert look(MODELS, BUILT.format(outputs.BY_NAME)) is None
    assert look(LISTS, ASKED.format("str(model.__class__)")) is None


def test_the_form_of_another_target_is_said() -> None:
    said = "what a model records is not kept by a name here"
    assert look(MODELS, BUILT.format(outputs.BY_MODEL)) == said
    assert look(MODELS, BUILT.format("pass")) == said
    assert look(LISTS, "_CAN_RECORD_REGISTRY = {}\n") == "the model takes the name itself"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (MODELS, ""),
        (MODELS, BUILT.format("_CAN_RECORD_REGISTRY[id(self)] = 1")),
        (LISTS, ""),
        (LISTS, "_CAN_RECORD_REGISTRY = 1\n" + ASKED.format("type(model)")),
    ],
)
def test_another_form_is_none_that_is_known(module: str, source: str) -> None:
    with pytest.raises(api.Unrecognised, match="in another way than it did"):
        look(module, source)


class FSDPModule:
    """As torch calls what it adds."""


class Model:
    """As transformers has it."""

    def __init_subclass__(cls) -> None: ...


class Text(Model):
    """Records."""


def sharded(cls: type) -> type:
    return type(f"FSDP{cls.__name__}", (FSDPModule, cls), {})


@pytest.fixture
def changed() -> Any:
    """Applies the patch to a module: the wrapper that it makes."""

    def apply(name: str, **parts: Any) -> Any:
        made: list[Any] = []

        def set_item(mapping: Any, key: Any, value: Any) -> None:
            mapping[key] = value

        patch: Any = types.SimpleNamespace(
            set_item=set_item, wrap=lambda owner, name, wrapper: made.append(wrapper)
        )
        outputs.apply(patch, types.SimpleNamespace(__name__=name, **parts))
        return made[0]

    return apply


@pytest.mark.parametrize("records", [{"hidden_states": 1}, None])
def test_a_class_is_registered_as_it_is_made(records: Any, changed: Any) -> None:
    registry = {str(Text): records}
    made = changed(MODELS, PreTrainedModel=Model, _CAN_RECORD_REGISTRY=registry)
    called: list[type] = []

    def original(cls: type, **kwargs: Any) -> None:
        called.append(cls)

    of_text = sharded(Text)
    for cls in (of_text, type("Other", (Text,), {}), sharded(type("New", (Model,), {}))):
        made(original, cls)
        assert called[-1] is cls
    assert registry == {str(Text): records, **({str(of_text): records} if records else {})}


def test_a_registry_finds_what_a_class_is_made_of(changed: Any) -> None:
    class Registry(dict[str, Any]):
        pass

    get = changed(LISTS, _CanRecordRegistry=Registry)
    registry = Registry({str(Text): {"hidden_states": 1}})

    def original(self: Any, model: Any) -> Any:
        return dict.get(self, str(type(model))) or {}

    assert get(original, registry, sharded(Text)()) is registry[str(Text)]
    assert get(original, registry, Text()) is registry[str(Text)]
    assert get(original, registry, type("Other", (Text,), {})()) == {}
    assert get(original, registry, sharded(Model)()) == {}
