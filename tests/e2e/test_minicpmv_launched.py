"""MiniCPM-V as its users launch it: the script's own command line, and ms-swift's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import envs, launch
from tests.lab.launch import Finished

TF457, TF523, SWIFT = "tf457-ds0182", "tf523-ds0198", "swift341"
FLAGS = {  # of finetune_lora.sh, but for sizes
    "llm_type": "qwen",
    "remove_unused_columns": "false",
    "label_names": "labels",
    "prediction_loss_only": "false",
    "tune_vision": "true",
    "tune_llm": "false",
    "use_lora": "true",
    "lora_target_modules": r"llm\..*layers\.\d+\.self_attn\.(q_proj|k_proj|v_proj|o_proj)",
    "model_max_length": "1024",
    "max_slice_nums": "9",
    "max_steps": "2",
    "eval_steps": "1",
    "logging_strategy": "steps",
    "logging_steps": "1",
    "per_device_train_batch_size": "1",
    "per_device_eval_batch_size": "1",
    "gradient_accumulation_steps": "1",
    "evaluation_strategy": "steps",
    "save_strategy": "steps",
    "save_steps": "1",
    "save_total_limit": "10",
    "learning_rate": "1e-6",
    "weight_decay": "0.1",
    "adam_beta2": "0.95",
    "warmup_ratio": "0.01",
    "lr_scheduler_type": "cosine",
    "gradient_checkpointing": "true",
    "report_to": "none",
}
VERBS = {
    "sft": ("sft",),
    "dpo": ("rlhf", "--rlhf_type", "dpo"),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("minicpmv")
    stack = envs.read_stacks()[TF457]
    launch.warm_up(stack)
    cache = {"HF_MODULES_CACHE": str(made / "modules")}
    finished = launch.run(stack, ["python", "-m", "tests.standin.make", made], limit=120, env=cache)
    assert finished.rc == 0, finished
    return made


def start(name: str, words: list[str | Path], folder: Path, cwd: Path, **env: str) -> Finished:
    stack = envs.read_stacks()[name]
    launch.warm_up(stack)
    env = {"HF_MODULES_CACHE": str(folder / "modules" / name), **env}
    return launch.run(stack, words, limit=300, env=env, gloo=True, cwd=cwd)


@pytest.mark.parametrize("zero", ["zero2", "zero3"])
@pytest.mark.parametrize("stack", [TF457, TF523])
def test_torchrun_of_the_unchanged_script(stack: str, zero: str, folder: Path, tmp_path: Path) -> None:
    """Training, evaluation, checkpoints and the last save, by the command line of finetune_lora.sh."""
    paths = {
        "model_name_or_path": folder / "model",
        "data_path": folder / "many.json",
        "eval_data_path": folder / "few.json",
        "output_dir": tmp_path / "out",
        "logging_dir": tmp_path / "logs",
        "deepspeed": folder / f"ds_config_{zero}.json",
    }
    flags = [word for name, value in {**FLAGS, **paths}.items() for word in (f"--{name}", str(value))]
    command: list[str | Path] = ["torchrun", "--nproc_per_node", "2"]
    command += ["--master_port", str(launch.free_port()), "finetune.py", "--do_train", "--do_eval", *flags]
    bare = start(stack, command, folder, folder / "finetune")
    assert bare.rc != 0, bare
    patched = start(stack, ["python", "-m", "vlmpatch", "run", *command], folder, folder / "finetune")
    assert patched.rc == 0, patched
    saved = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"checkpoint-1", "checkpoint-2", "adapter_model.safetensors", "tokenizer_config.json"} <= saved


@pytest.mark.parametrize("zero", ["zero2", "zero3"])
@pytest.mark.parametrize("kind", VERBS)
def test_swift(kind: str, zero: str, folder: Path, tmp_path: Path) -> None:
    """What this project began with: MiniCPM-V-2.6, DPO, a trainable vision tower, more slices than fit."""
    done = swift(kind, zero, folder, tmp_path)
    assert done.rc == 0, done


def test_swift_without_the_patch_reduces_twice(folder: Path, tmp_path: Path) -> None:
    done = swift("dpo", "zero2", folder, tmp_path, VLMPATCH_DISABLE="swift-checkpoint-override")
    assert done.rc != 0, done
    assert "has already been reduced" in done.output


def swift(kind: str, zero: str, folder: Path, out: Path, **env: str) -> Finished:
    options = {
        "model": folder / "model",
        "model_type": "minicpmv2_6",
        "template": "minicpmv2_6",
        "freeze_vit": "false",
        "train_type": "lora",
        "torch_dtype": "float32",
        "fp16": "false",
        "bf16": "false",
        "dataset": folder / f"{kind}.jsonl",
        "max_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "split_dataset_ratio": 0,
        "deepspeed": zero,
        "gradient_accumulation_steps": 1,
        "per_device_train_batch_size": 1,
        "dataloader_num_workers": 0,
        "output_dir": out,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command: list[str | Path] = ["python", "-m", "vlmpatch", "run", "swift", *VERBS[kind], *words]
    return start(SWIFT, command, folder, out, NPROC_PER_NODE="2", USE_HF="1", **env)
