"""Trainings of TRL's that ``tests.e2e.drawn_trl`` drew and that are right with vlmpatch alone.

Each is held against DDP without checkpointing; without vlmpatch each dies, hangs, or learns something else.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import drawing, drawn_trl
from tests.lab import envs, launch

pytestmark = pytest.mark.slow
STACK = "trl024"
ROWS = [1, 0, 0, 1, 2, 1, 0, 0, 1, 1, 0, 1]
MADE: dict[str, Any] = {
    "rows": "mixed",
    "adapter": None,
    "wrapped": False,
    "scenario": "",
    "reference": False,
    "form": "prompt",
    "held": 0,
}
TOLD: dict[str, Any] = {"kind": "qwen2_vl", "acts": ["train"], "rows": ROWS, "zero": {}, "fsdp": {}}
SHORT: dict[str, Any] = {"max_steps": 4, "gradient_accumulation_steps": 1}
ANSWERED = {**SHORT, "per_device_train_batch_size": 2}
# An image on one rank and a text on the other.
FOUND: dict[str, dict[str, Any]] = {
    "answers-under-ddp": {"trainer": "grpo", "engine": "ddp", "arguments": ANSWERED, "made": MADE},
    "answers-near-a-model": {
        **{"trainer": "grpo", "engine": "zero3", "made": {**MADE, "adapter": {}}},
        "arguments": {**ANSWERED, "beta": 0.04},
    },
    "texts-among-images": {"trainer": "sft", "engine": "zero3", "arguments": SHORT, "made": MADE},
}
Ended = dict[str, drawing.Ended]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """All of them, in forks of one process for each of: right, bare, and with vlmpatch."""
    stack = envs.read_stacks()[STACK]
    envs.make(stack)
    models = launch.checkpoints(stack, sorted({TOLD["kind"]}))
    told = [{**TOLD, **said} for said in FOUND.values()]
    ran = drawn_trl.perform(stack, told, models, tmp_path_factory.mktemp("drawn"))
    return dict(zip(FOUND, ran, strict=True))


@pytest.mark.parametrize("name", FOUND)
def test_what_was_drawn_trains_as_ddp_does(name: str, ended: Ended) -> None:
    said = "\n".join(map(drawing.said, ended[name]))
    assert drawing.word(*ended[name]) == "fixed", said
