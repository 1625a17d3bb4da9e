"""Real LLaMA-Factory 0.9.3, full tuning, on rows of which every third has no image: ZeRO-2, ZeRO-3 and DDP.

It puts a picture of its own into a batch that has none, so its ranks do not wait for each other. What is
right is what DDP prints that looks for unused parameters, checkpointed in the way that trains the tower.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.test_launchers import LIMIT, PRINTED, RUN, Training, close
from tests.e2e.test_mixed_swift import mixed_rows
from tests.lab import envs, launch
from tests.lab.tiny import SHAREGPT
from vlmpatch_lab.ports import free_port

pytestmark = pytest.mark.slow
STACK = "llamafactory093"
MODELS = {"llava": "llava_files", "qwen2_vl": "qwen2_vl"}  # by its template's name, ours
Train = Callable[..., Training]


def zero(stage: int) -> dict[str, Any]:
    settings = {"stage": stage, "stage3_param_persistence_threshold": 0}
    return {"deepspeed": {"train_micro_batch_size_per_gpu": 1, "zero_optimization": settings}}


ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"use_cpu": True, "ddp_backend": "gloo", "ddp_find_unused_parameters": True},
    "zero2": zero(2),
    "zero3": zero(3),
}
SETTINGS = {
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "freeze_vision_tower": False,
    "freeze_multi_modal_projector": False,
    "dataset": "sft",
    "disable_shuffling": True,
    "cutoff_len": 512,
    "preprocessing_num_workers": 1,
    "overwrite_cache": True,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "max_steps": 4,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "bf16": False,
}


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Run ``llamafactory-cli`` once on a model under an engine."""

    @functools.cache
    def run(kind: str, engine: str, *, patched: bool) -> Training:
        stack, folder = envs.read_stacks()[STACK], tmp_path_factory.mktemp("mixed")
        envs.make(stack)
        model = launch.checkpoint(stack, MODELS[kind])
        rows = mixed_rows(model, folder)
        info = {"sft": {"file_name": rows.name, **SHAREGPT}}
        (folder / "dataset_info.json").write_text(json.dumps(info))
        said = {**SETTINGS, **ENGINES[engine], "template": kind, "dataset_dir": str(folder)}
        said |= {"model_name_or_path": str(model), "output_dir": str(folder / "out")}
        (folder / "train.yaml").write_text(json.dumps(said))
        command = [*(RUN if patched else ()), "llamafactory-cli", "train", str(folder / "train.yaml")]
        port, alone = str(free_port()), engine == "ddp"  # which needs no accelerator to be answered for
        env = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "2", "MASTER_PORT": port, "PET_MASTER_PORT": port}
        finished = launch.run(stack, command, limit=LIMIT, env=env, gloo=not alone, waiting=not alone)
        return Training(finished, folder / "out")

    return run


@pytest.mark.parametrize("engine", ["zero2", "zero3"])
@pytest.mark.parametrize("kind", MODELS)
def test_mixed_rows_print_what_ddp_prints(kind: str, engine: str, train: Train) -> None:
    right = train(kind, "ddp", patched=True)
    bare, patched = (train(kind, engine, patched=how) for how in (False, True))
    for run in (right, patched):
        assert run.finished.rc == 0, str(run.finished)
    assert patched.printed() == pytest.approx(right.printed(), rel=PRINTED)
    assert bare.finished.rc == 0, str(bare.finished)
    assert close(bare.printed(), right.printed()), str(bare.finished)
