"""TRL's own options, two micro-batches a step, under ZeRO-2, ZeRO-3 and FSDP2.

Its trainers, each as TRL sets checkpointing up by itself or as it is told to, with adapters of PEFT's. What
is right is what the same script prints under DDP without checkpointing. SFT's rows are mixed: every third has
no image. Left out is what TRL refuses (a reference model that it copies, or precomputes, under ZeRO-3), and
``activation_offloading``, which needs an accelerator. An engine is named where an option is asked there only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.test_launchers import PRINTED, Training
from tests.lab import envs, forked, launch

pytestmark = pytest.mark.slow
STACK = "trl024"
SCRIPT = "tests/programs/train_trl_options.py"
IMPORTS = (*forked.STACK, "deepspeed", *(f"trl.trainer.{each}_trainer" for each in ("sft", "dpo", "grpo")))
ZERO = ("zero2", "zero3")
LORA: dict[str, Any] = {}
REENTRANT = {"gradient_checkpointing_kwargs": {"use_reentrant": True}}
NON_REENTRANT = {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
RIGHT = {"gradient_checkpointing": False, "ddp_find_unused_parameters": True}
NEAR = {"beta": 0.04}


class Option(NamedTuple):
    """A trainer and what it is told; no adapter is full tuning."""

    trainer: str
    told: dict[str, Any] | None = None
    adapter: dict[str, Any] | None = None
    rows: str = "mixed"
    engines: tuple[str, ...] = ZERO
    kind: str = "qwen2_vl"


OPTIONS = {
    "sft-full": Option("sft", engines=("ddp", *ZERO, "fsdp2")),
    "sft-lora": Option("sft", adapter=LORA, engines=("ddp", *ZERO, "fsdp1", "fsdp2")),
    "sft-reentrant": Option("sft", REENTRANT, LORA),
    "sft-non-reentrant": Option("sft", NON_REENTRANT, LORA),
    "sft-language-model": Option("sft", adapter={"target_modules": ["q_proj", "v_proj"]}),
    "sft-dora": Option("sft", adapter={"use_dora": True}),
    "sft-adalora": Option(
        "sft",
        adapter={"kind": "AdaLoraConfig", "total_step": 10, "tinit": 1, "tfinal": 1},
        engines=("zero2",),
    ),
    "sft-modules-to-save": Option("sft", adapter={"modules_to_save": ["lm_head", "embed_tokens"]}),
    "sft-biases": Option("sft", adapter={"bias": "all"}),
    "sft-pissa": Option("sft", adapter={"init_lora_weights": "pissa"}),
    "sft-llava": Option("sft", kind="llava_files"),
    "sft-packed": Option("sft", {"packing": True, "max_length": 32}, LORA, "text"),
    "sft-padding-free": Option(
        "sft", {"padding_free": True, "per_device_train_batch_size": 2}, LORA, "text", ("zero3",)
    ),
    "dpo-llava": Option("dpo", adapter={"init_lora_weights": "pissa"}, rows="images", kind="llava_files"),
    "dpo-several-losses": Option("dpo", {"loss_type": ["sigmoid", "sft"]}, LORA, "text", ("zero3",)),
    "dpo-synchronised": Option(
        "dpo", {"sync_ref_model": True, "ref_model_sync_steps": 1}, None, "text", ("zero2",)
    ),
    "kto": Option("kto", adapter=LORA),
    "orpo": Option("orpo", adapter=LORA, engines=("zero3",)),
    "reward": Option("reward", adapter={"task_type": "SEQ_CLS"}),
    "grpo": Option("grpo", adapter=LORA, rows="images"),
    "grpo-near-a-model": Option("grpo", NEAR, rows="images", engines=("zero3",)),
    "grpo-near-without-adapter": Option("grpo", NEAR, LORA, "images"),
    "rloo-near-without-adapter": Option("rloo", {"beta": 0.05}, LORA, "images", ("zero3",)),
}
CELLS = [(name, engine) for name, option in OPTIONS.items() for engine in option.engines]
Trainings = dict[tuple[str, str], Training]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    """Every option under its engines, and as it is right, in forks of one process."""
    stack, folder = envs.read_stacks()[STACK], tmp_path_factory.mktemp("options")
    envs.make(stack)
    models = launch.checkpoints(stack, sorted({option.kind for option in OPTIONS.values()}))
    jobs = {
        (name, engine): forked.Job(
            (SCRIPT, *words_of(OPTIONS[name], engine, models), "--output_dir", str(folder))
        )
        for name, engine in [*((name, "right") for name in OPTIONS), *CELLS]
    }
    ran = forked.run(stack, [*jobs.values()], folder / "out", imports=IMPORTS, gloo=True, waiting=True)
    return {key: Training(ran[job], folder) for key, job in jobs.items()}


def words_of(option: Option, engine: str, models: dict[str, Path]) -> list[str]:
    told = {"gradient_checkpointing": True} | (option.told or {})
    if engine == "right":
        told, engine = told | RIGHT, "ddp"
    adapter = [] if option.adapter is None else ["--adapter", json.dumps(option.adapter)]
    places = ["--model", str(models[option.kind]), "--engine", engine, "--rows", option.rows]
    return [option.trainer, *places, "--options", json.dumps(told), *adapter]


@pytest.mark.parametrize(("name", "engine"), CELLS)
def test_an_option_prints_what_ddp_prints(name: str, engine: str, trainings: Trainings) -> None:
    right, trained = trainings[name, "right"], trainings[name, engine]
    for run in (right, trained):
        assert run.finished.rc == 0, str(run.finished)
    assert len(right.printed()) == 6, str(right.finished)
    assert trained.printed() == pytest.approx(right.printed(), rel=PRINTED, abs=1e-6), str(trained.finished)
