"""Sequence parallelism: what each stage of ZeRO divides by, and so which losses are right under it (F56)."""

from __future__ import annotations

import pytest

from tests.lab import sequence

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stack", ["tf457-ds0182", "tf523-ds0198"])
@pytest.mark.parametrize("patched", [False, True])
def test_every_stage_divides_as_the_page_says(stack: str, patched: bool) -> None:
    by_size = {"ZeRO-1": 2.0, "ZeRO-2": 2.0, "ZeRO-3": 1.0, "ZeRO-3, all-reduce": 2.0}
    found = sequence.perform(stack, patched=patched)
    assert found["gathered"] == by_size
    assert found["share"] == {stage: ratio / sequence.SIZE for stage, ratio in by_size.items()}
