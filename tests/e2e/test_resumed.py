"""A training that was stopped and resumed ends as the one that was not, to the last bit, engine by engine."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.lab import cells, envs
from vlmpatch_lab.cell import Cell

pytestmark = pytest.mark.slow

STACKS = ("tf457-ds0182", "tf523-ds0198")
ENGINES = ("ddp", "zero1", "zero2", "zero3", "fsdp2")
LAUNCH = {"VLMPATCH_LAB_GLOO": "1"}  # transformers starts DeepSpeed through accelerate
CELLS = [
    Cell(engine=engine, tuning=tuning, trainer="hf_resumed", checkpointing="off")
    for engine, tuning in itertools.product(ENGINES, ("full", "lora"))
]


@pytest.fixture(scope="session", params=STACKS)
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, cells.Result]:
    stack = envs.read_stacks()[request.param]
    out: Path = tmp_path_factory.mktemp(request.param)
    return cells.run(stack, CELLS, out, patched=True, env=LAUNCH)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.engine}-{cell.tuning}")
def test_resumed_is_not_resumed(cell: Cell, found: dict[str, cells.Result]) -> None:
    result = found[cell.id]
    assert result.ok, result
