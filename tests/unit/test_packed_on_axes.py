"""Packed rows of models with positions along three axes: the forms their text models have had."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from vlmpatch import api

on_axes: Any = importlib.import_module("vlmpatch.patches.transformers.packed_rows_on_three_axes")
SOURCE = """
class {kind}:
    def forward(self, input_ids, attention_mask, position_ids, past_key_values):
        if position_ids.ndim == 2:
            position_ids = position_ids[None, ...].expand({rows}, position_ids.shape[0], -1)
        if position_ids.ndim == 3 and position_ids.shape[0] == {text}:
            text_position_ids = position_ids[0]
        else:
            text_position_ids = {otherwise}
"""


def look(kind: str, module: str, rows: int = 3, text: int = 4, otherwise: str = "None") -> Any:
    source = SOURCE.format(kind=kind, rows=rows, text=text, otherwise=otherwise)
    return on_axes.look(api.Code(f"transformers.models.{module}.modeling_{module}", "modeling.py", source))


@pytest.mark.parametrize(("module", "kind"), on_axes.KINDS.items())
def test_the_bug_is_known_in_each_model(module: str, kind: str) -> None:
    assert look(kind, module) is None


def test_ernie_had_another_name() -> None:
    assert look("Ernie4_5_VL_MoeTextModel", "ernie4_5_vl_moe") is None


def test_other_forms_are_left_alone() -> None:
    kind, module = "Qwen2VLTextModel", "qwen2_vl"
    told = "positions of texts are not told apart from those of images"
    assert look(kind, module, text=5) == told
    assert look(kind, module, otherwise="position_ids[0]") == "rows are looked for in positions of a text"
    assert look(kind, module, rows=4) == "positions of a text are not laid along three axes"


def test_a_text_model_that_is_gone_is_no_form_that_is_known() -> None:
    with pytest.raises(api.Unrecognised, match="has no"):
        look("Other", "qwen2_vl")
