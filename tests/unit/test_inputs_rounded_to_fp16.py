"""Which configurations HF Trainer takes for fp16, and what its inputs are cast to."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch.api import Code, Patch, Unrecognised
from vlmpatch.journal.journal import Journal

ID = "inputs-rounded-to-fp16"
patch: Any = importlib.import_module("vlmpatch.patches.transformers.inputs_rounded_to_fp16")
FP16, BF16, FP32 = object(), object(), object()


class Configuration:
    """As transformers 4's: what is not said to be no fp16 is fp16."""

    def __init__(self, **config: dict[str, Any]) -> None:
        self.config = config

    def is_true(self, key: str) -> bool:
        name, entry = key.split(".")
        return bool(self.config.get(name, {}).get(entry))

    def is_false(self, key: str) -> bool:
        name, entry = key.split(".")
        return not self.config.get(name, {}).get(entry, True)

    def trainer_config_process(self, args: Any = None) -> None:
        self._dtype = BF16 if self.is_true("bf16.enabled") else FP16
        if self._dtype is FP16 and self.is_false("fp16.enabled"):
            self._dtype = FP32

    def dtype(self) -> Any:
        return self._dtype


@pytest.fixture(autouse=True)
def patched() -> Iterator[None]:
    module: Any = ModuleType("transformers.integrations.deepspeed")
    module.HfTrainerDeepSpeedConfig = Configuration
    module.torch = SimpleNamespace(float16=FP16, bfloat16=BF16, float32=FP32)
    journal = Journal()
    patch.apply(Patch(ID, journal), module)
    yield
    journal.rollback([ID])


def complete(configuration: Configuration, precision: str) -> Configuration:
    """As accelerate does: a precision that is asked for goes where the configuration has none."""
    for name in ("fp16", "bf16"):
        configuration.config.setdefault(name, {"enabled": name == precision})
    return configuration


@pytest.mark.parametrize(
    ("config", "precision", "before", "after"),
    [
        ({}, "no", FP16, FP32),
        ({}, "fp16", FP16, FP16),
        ({}, "bf16", FP16, BF16),
        ({"fp16": {}}, "no", FP16, FP32),
        ({"fp16": {}}, "bf16", FP16, BF16),
        ({"fp16": {"loss_scale": 0}, "bf16": {}}, "no", FP32, FP32),
        ({"fp16": {"enabled": True}}, "no", FP16, FP16),
        ({"fp16": {"enabled": False}}, "no", FP32, FP32),
        ({"bf16": {"enabled": True}}, "no", BF16, BF16),
        ({"bf16": {"enabled": False}}, "no", FP16, FP32),
        ({"amp": {"enabled": True}}, "no", FP16, FP16),
    ],
)
def test_inputs_have_the_precision_that_deepspeed_computes_in(
    config: dict[str, Any], precision: str, before: object, after: object
) -> None:
    made = Configuration(**config)
    made.trainer_config_process()
    assert made.dtype() is before
    assert complete(made, precision).dtype() is after


def test_a_subclass_that_decides_by_itself_is_asked() -> None:
    class Decides(Configuration):
        def trainer_config_process(self, args: Any = None) -> None:
            self._dtype = FP16

    class Adds(Configuration):
        more = True

    for made, right in ((Decides(), FP16), (Adds(), FP32)):
        made.trainer_config_process()
        assert complete(made, "no").dtype() is right


FORM = """
class HfTrainerDeepSpeedConfig:
    def trainer_config_process(self, args):
        self._dtype = 32 if self.{} else 16

    def dtype(self): ...
"""


def look(source: str) -> Any:
    return patch.look(Code("m", "m.py", source))


def test_the_form_that_takes_what_is_not_said_for_fp16_is_known() -> None:
    assert look(FORM.format('is_false("fp16.enabled")')) is None
    assert "taken for float32" in look(FORM.format('is_true("fp16.enabled")'))
    for source in (FORM.format("asked"), "", FORM.replace("dtype(", "precision(")):
        with pytest.raises(Unrecognised):
            look(source)
