"""Trainings of ms-swift that ``tests.e2e.drawn_swift`` drew and that are right with vlmpatch alone.

Each is held against DDP without checkpointing; without vlmpatch each dies, or learns something else.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import drawing, drawn_swift
from tests.lab import envs, launch

STACK = "swift460"
TOLD: dict[str, Any] = {
    "preset": False,
    "verb": "sft",
    "acts": ["train"],
    "held": 0,
    "rows": [1, 0, 0, 1, 2, 1, 0, 0, 1, 1, 0, 1],
    "zero": {},
    "fsdp": {},
}
LLAVA = {"model_type": "llava1_5_hf", "template": "llava1_5_hf", "max_steps": 4}
FULL = {"tuner_type": "full", "freeze_vit": False, "freeze_aligner": False}
FOUND: dict[str, dict[str, Any]] = {
    "texts-under-the-preset": {
        **{"kind": "llava_files", "engine": "zero3", "preset": True},
        "arguments": {**LLAVA, **FULL, "gradient_accumulation_steps": 1},
    },
    "resumed": {
        **{"kind": "llava_files", "engine": "zero2", "acts": ["train", "resume"]},
        "arguments": {
            **{**LLAVA, **FULL, "gradient_accumulation_steps": 2},
            **{"save_strategy": "steps", "save_steps": 2},
        },
    },
}
Ended = dict[str, drawing.Ended]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """All of them, in forks of one process for each of: right, bare, and with vlmpatch."""
    stack = envs.read_stacks()[STACK]
    envs.make(stack)
    models = launch.checkpoints(stack, sorted({said["kind"] for said in FOUND.values()}))
    told = [{**TOLD, **said} for said in FOUND.values()]
    ran = drawn_swift.perform(stack, told, models, tmp_path_factory.mktemp("drawn"))
    return dict(zip(FOUND, ran, strict=True))


@pytest.mark.parametrize("name", FOUND)
def test_what_was_drawn_trains_as_ddp_does(name: str, ended: Ended) -> None:
    said = "\n".join(map(drawing.said, ended[name]))
    assert drawing.word(*ended[name]) == "fixed", said


def test_a_seed_draws_the_same_again() -> None:
    stack = envs.read_stacks()[STACK]
    one, again, other = (drawn_swift.drawn(stack, seed, 5, ["qwen2_vl"]) for seed in (0, 0, 1))
    assert one == again
    assert one != other
