"""A rank of the lab ends whatever its process group still does, on every torch."""

from __future__ import annotations

import pytest

from tests.lab import envs, launch

STACKS = ("torch241", "torch2150")


@pytest.mark.slow
@pytest.mark.parametrize("stack", STACKS)
def test_with_a_reduction_left(stack: str) -> None:
    finished = launch.run(envs.read_stacks()[stack], ["python", "-m", "tests.lab.ends"], limit=120)
    assert finished.rc == 0, str(finished)
