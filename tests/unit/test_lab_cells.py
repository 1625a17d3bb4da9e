"""What a cell is measured against."""

from __future__ import annotations

import pytest

from vlmpatch_lab.cell import PATTERNS, Cell


def test_steps_are_held_against_one_process_whatever_the_engine() -> None:
    cells = [
        Cell(engine=engine, checkpointing=how, compared=3, accumulation=2, pattern="text-step")
        for engine in ("ddp", "ddp_unused", "fsdp2")
        for how in ("off", "default", "reentrant")
    ]
    (measure,) = {cell.reference for cell in cells}
    assert (measure.engine, measure.checkpointing, measure.ranks) == ("plain", "off", 1)
    assert measure.reference == measure


def test_a_unit_cannot_skip_a_parameter_so_its_measure_does_not() -> None:
    cell = Cell(engine="zero2", compared=2, zero={"overlap_comm": True}, config={"gradient_clipping": 1.0})
    assert cell.reference.engine == "plain"
    assert cell.reference.zero == {}
    assert cell.reference.config == {"gradient_clipping": 1.0}
    assert Cell(engine="fsdp1", compared=2).reference.engine == "plain_zeros"


def test_gathers_and_single_gradients_keep_the_same_engine() -> None:
    assert Cell(engine="zero3").reference == Cell(engine="zero3", checkpointing="off")


def test_a_pattern_without_compared_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="steps that are compared"):
        Cell(pattern="text-step")
    with pytest.raises(ValueError, match="not one of"):
        Cell(pattern="sometimes", compared=1)


def test_the_text_step_is_one_step_on_every_rank() -> None:
    kind = PATTERNS["text-step"]
    assert [[kind(step, 0, rank) for rank in (0, 1)] for step in (0, 1, 2)] == [
        ["image", "image"],
        ["text", "text"],
        ["image", "image"],
    ]
