"""Packed rows beside an empty cache: the forms that transformers' search for rows has had."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from vlmpatch import api

packed_rows: Any = importlib.import_module("vlmpatch.patches.transformers.packed_rows_beside_a_cache")
SOURCE = """
def find_packed_sequence_indices(position_ids):
    return position_ids

def _preprocess_mask_arguments(config, inputs_embeds, attention_mask, {cache}, position_ids, layer_idx):
    if position_ids is not None and attention_mask is None and {cache} is None:
        return find_packed_sequence_indices(position_ids)
"""


def look(source: str) -> Any:
    return packed_rows.look(api.Code("transformers.masking_utils", "masking_utils.py", source))


@pytest.mark.parametrize("cache", ["past_key_values", "cache"])
def test_the_bug_is_known_by_either_name_of_the_cache(cache: str) -> None:
    assert look(SOURCE.format(cache=cache)) is None
    fixed = SOURCE.format(cache=cache).replace(f" and {cache} is None", "")
    assert look(fixed) == "rows are looked for beside a cache too"


def test_another_name_is_no_form_that_is_known() -> None:
    with pytest.raises(api.Unrecognised, match="takes other arguments"):
        look(SOURCE.format(cache="keys"))
