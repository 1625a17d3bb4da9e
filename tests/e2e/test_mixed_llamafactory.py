"""Real LLaMA-Factory (0.9.3, 0.9.5), full tuning, a third of the rows without an image; ZeRO-2, ZeRO-3, DDP.

It puts a picture of its own into a batch that has none, so its ranks do not wait for each other. What is
right is what DDP prints that looks for unused parameters, checkpointed in the way that trains the tower.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from tests.e2e import mixed_frameworks
from tests.e2e.mixed_frameworks import Train, bare_is_right, launched
from tests.e2e.test_launchers import Training
from tests.families._shared.files import SHAREGPT
from tests.lab import envs, launch

pytestmark = pytest.mark.slow
STACKS = ("llamafactory093", "llamafactory095")
MODELS = {"llava": "llava_files", "qwen2_vl": "qwen2_vl"}  # by its template's name, ours


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


@pytest.fixture(scope="module", params=STACKS)
def train(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Run ``llamafactory-cli`` once on a model under an engine."""
    name: str = request.param

    @functools.cache
    def run(kind: str, engine: str, *, patched: bool) -> Training:
        stack, folder = envs.read_stacks()[name], tmp_path_factory.mktemp("mixed")
        envs.make(stack)
        model = launch.checkpoint(stack, MODELS[kind])
        rows = mixed_frameworks.rows(model, folder)
        info = {"sft": {"file_name": rows.name, **SHAREGPT}}
        (folder / "dataset_info.json").write_text(json.dumps(info))
        said = {**SETTINGS, **ENGINES[engine], "template": kind, "dataset_dir": str(folder)}
        said |= {"model_name_or_path": str(model), "output_dir": str(folder / "out")}
        (folder / "train.yaml").write_text(json.dumps(said))
        command = ["llamafactory-cli", "train", str(folder / "train.yaml")]
        environ = {"FORCE_TORCHRUN": "1"}
        return launched(name, command, folder / "out", engine, environ, patched=patched)

    return run


@pytest.mark.parametrize("engine", ["zero2", "zero3"])
@pytest.mark.parametrize("kind", MODELS)
def test_mixed_rows_print_what_ddp_prints(kind: str, engine: str, train: Train) -> None:
    right, bare = bare_is_right(train, kind, engine)
    assert right, str(bare.finished)
