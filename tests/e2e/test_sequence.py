"""Sequence parallelism: what each stage of ZeRO divides by, and so which losses are right under it (F56)."""

from __future__ import annotations

import pytest

from tests.lab import sequence

pytestmark = pytest.mark.slow


STACKS = ["tf457-ds0182", "tf523-ds0198"]
BARE = {"ZeRO-0": 2.0, "ZeRO-1": 2.0, "ZeRO-2": 2.0, "ZeRO-3": 1.0, "ZeRO-3, all-reduce": 2.0}
OWN = {stage: ratio / sequence.SIZE for stage, ratio in BARE.items()}


@pytest.mark.parametrize("stack", STACKS)
def test_every_stage_divides_as_the_page_says(stack: str) -> None:
    found = sequence.perform(stack)
    assert found.pop("gathered") == BARE
    assert found == dict.fromkeys(("share", "made up for", "divided before"), OWN)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("rows", [1, 2])
def test_every_stage_is_right_for_a_mean_and_leaves_all_else(stack: str, rows: int) -> None:
    found = sequence.perform(stack, patched=True, rows=rows)
    assert found.pop("gathered") == dict.fromkeys(BARE, 1.0)
    assert found == dict.fromkeys(("share", "made up for", "divided before"), OWN)
