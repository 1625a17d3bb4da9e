"""Image-and-text families that can be made small: what holds bare holds with us (`VLMPATCH_FULL=1`: all)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import families, model_classes, modes
from tests.standin.cells import FULL

pytestmark = pytest.mark.slow
LEAST = 20  # families; 27 could be made when this was written
SOME = ("aria", "mllama", "ovis2")  # experts, a text model that skips layers, a table it multiplies by


def test_what_holds_bare_holds_with_us(tmp_path: Path) -> None:
    found = families.perform("tf457-ds0182", [] if FULL else [*SOME], tmp_path)
    ran = {kind: about for kind, about in found.items() if "not made" not in about}
    assert len(ran) >= (LEAST if FULL else len(SOME)), found
    assert not {kind: about for kind, about in ran.items() if not families.holds(about)}


def test_some_model_classes_are_one_function(tmp_path: Path) -> None:
    some = ("LlamaForCausalLM", "BertModel", "CLIPVisionModel", "T5ForConditionalGeneration", "ViTModel")
    ran = {line["class"]: line for line in model_classes.perform("tf457-ds0182", ",".join(some), tmp_path)}
    assert {*some} <= {*ran}
    for name in some:
        assert [ran[name].get(mode) for mode in modes.MODES] == ["="] * 3, ran[name]
