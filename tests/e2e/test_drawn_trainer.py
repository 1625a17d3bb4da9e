"""Trainings of HF Trainer that ``tests.e2e.drawn_trainer`` drew and that were wrong once.

Each is held against DDP without checkpointing; without vlmpatch each dies, or learns something else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e import drawing, drawn_trainer
from tests.lab import envs, launch

STACK, NEWEST = "tf457-ds0182", envs.NEWEST
# A window in which no rank has an image is among them.
ROWS = [True, True, True, False, True, False, False, False, False, True, False, False]
TOLD: dict[str, Any] = {
    "tuning": "full",
    "scenario": "",
    "input_grads": True,
    "trainer": "",
    "metrics": False,
    "ignored": None,
    "callbacks": [],
    "acts": ["train"],
    "arguments": {"num_train_epochs": 1, "gradient_checkpointing": True},
    "ddp": {},
    "streamed": False,
    "rows": ROWS,
    "zero": {},
    "fsdp": {},
}


def only(layer: str) -> dict[str, Any]:
    return {"transformer_layer_cls_to_wrap": [layer]}


OUT_OF_MEMORY: dict[str, Any] = {
    "trainer": "late_memory",
    "rows": [True] * len(ROWS),
    "arguments": {
        "max_steps": 3,
        "gradient_checkpointing": True,
        "auto_find_batch_size": True,
        "per_device_train_batch_size": 2,
        "optim": "sgd",
    },
}
FOUND: dict[str, dict[str, Any]] = {
    # A tower that FSDP2 keeps in its root was trained on a blank image where no rank had one.
    "tower-in-the-root": {"kind": "llava", "engine": "fsdp2"},
    "tower-in-the-root-lora": {
        **{"kind": "gemma3", "engine": "fsdp2", "tuning": "lora"},
        "fsdp": only("Gemma3DecoderLayer"),
    },
    "phi4-in-the-root": {
        **{"kind": "phi4_multimodal", "engine": "fsdp2"},
        "fsdp": only("Phi4MultimodalDecoderLayer"),
    },
    # A backward that failed left FSDP2's root without gradients, and ended FSDP1.
    "out-of-memory-fsdp1": {"kind": "qwen2_vl", "engine": "fsdp1", **OUT_OF_MEMORY},
    "out-of-memory-fsdp2": {"kind": "qwen2_vl", "engine": "fsdp2", "tuning": "lora", **OUT_OF_MEMORY},
}
# What a page advises (F115): features of images are there in some rows alone.
EVALUATED = {"num_train_epochs": 1, "eval_strategy": "steps", "eval_steps": 1}
ADVISED: dict[str, dict[str, Any]] = {
    name: {"kind": "llava", "engine": "zero2", "metrics": True, "arguments": EVALUATED, "ignored": ignored}
    for name, ignored in {"all": None, "named": ["past_key_values", "image_hidden_states"]}.items()
}
FOUND_ON_NEWEST: dict[str, dict[str, Any]] = {
    # Experts that transformers 5 saved without ZeRO-3 could not be loaded with it (F118).
    "experts-under-zero3": {"kind": "qwen3_vl_moe", "engine": "zero3"},
}
EVERY = {STACK: FOUND | ADVISED, NEWEST: FOUND_ON_NEWEST}
Ended = dict[str, drawing.Ended]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """All of them, in forks of one process for each of: right, bare, and with vlmpatch."""
    return {
        name: ending
        for stack, every in EVERY.items()
        for name, ending in perform(stack, every, tmp_path_factory.mktemp(stack)).items()
    }


def perform(name: str, every: dict[str, dict[str, Any]], folder: Path) -> Ended:
    """How trainings ended on one stack."""
    stack = envs.read_stacks()[name]
    envs.make(stack)
    models = launch.checkpoints(stack, sorted({said["kind"] for said in every.values()}))
    ran = drawn_trainer.perform(stack, [{**TOLD, **said} for said in every.values()], models, folder)
    return dict(zip(every, ran, strict=True))


@pytest.mark.parametrize("name", [*FOUND, *FOUND_ON_NEWEST])
def test_what_was_drawn_trains_as_ddp_does(name: str, ended: Ended) -> None:
    said = "\n".join(map(drawing.said, ended[name]))
    assert drawing.word(*ended[name]) == "fixed", said


def test_what_is_named_is_not_gathered(ended: Ended) -> None:
    said = "\n".join(map(drawing.said, (*ended["all"], *ended["named"])))
    assert [drawing.word(*ended[name]) for name in ADVISED] == ["without a measure", "fixed"], said


def test_a_seed_draws_the_same_again() -> None:
    one, again, other = (drawn_trainer.drawn(seed, 5, ["llava"]) for seed in (0, 0, 1))
    assert one == again
    assert one != other
