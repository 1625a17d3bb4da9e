"""MiniCPM-V as its users launch it: the script's own command line, and ms-swift's.

``VLMPATCH_FULL=1`` adds ZeRO-2 beside ZeRO-3 under torchrun, and ZeRO-3 and SFT beside DPO under ZeRO-2, and
launches the script on every stack: `make test` does so on the oldest and the newest, and bare on the newest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_launchers import RUN, SWIFT, Training, died, is_right, on_forked_ranks
from tests.e2e.test_zero3_swift import TUNER
from tests.lab import envs, launch
from tests.lab.launch import Finished
from tests.lab.outcomes import REDUCED_TWICE
from tests.standin.cells import BARE, FULL, LAUNCHED, TF445, TF523, TF524
from vlmpatch_lab.ports import free_port

LAST_SAVE = "adapter_model.safetensors"
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
VERBS = {"dpo": ("rlhf", "--rlhf_type", "dpo"), "sft": ("sft",)}
NO_INPUTS = "'MiniCPMV' object has no attribute 'prepare_inputs_for_generation'"


# Two ranks that copy a checkpoint's code at the same time read each other's half-written files.
COPY = (
    "import pathlib, sys\n"
    "from transformers.dynamic_module_utils import get_cached_module_file\n"
    "for file in pathlib.Path(sys.argv[1]).glob('*.py'):\n"
    "    get_cached_module_file(sys.argv[1], file.name)\n"
)


def start(name: str, words: list[str | Path], standin: Path, cwd: Path, **env: str) -> Finished:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    modules = standin / "modules" / name
    env = {"HF_MODULES_CACHE": str(modules), **env}
    if not modules.exists():
        copied = launch.run(stack, ["python", "-c", COPY, standin / "model"], limit=120, env=env, cwd=cwd)
        assert copied.rc == 0, str(copied)
    return launch.run(stack, words, limit=300, env=env, gloo=True, waiting=True, cwd=cwd)


def torchrun(zero: str, standin: Path, out: Path) -> list[str | Path]:
    """The command line of finetune_lora.sh."""
    paths = {
        "model_name_or_path": standin / "model",
        "data_path": standin / "many.json",
        "eval_data_path": standin / "few.json",
        "output_dir": out,
        "logging_dir": out / "logs",
        "deepspeed": standin / f"ds_config_{zero}.json",
    }
    flags = [word for name, value in {**FLAGS, **paths}.items() for word in (f"--{name}", str(value))]
    ranks = ["--nproc_per_node", "2", "--master_port", str(free_port())]
    return ["torchrun", *ranks, "finetune.py", "--do_train", "--do_eval", *flags]


@pytest.mark.parametrize("stack", LAUNCHED if FULL else [TF524])
def test_torchrun_bare(stack: str, standin: Path, tmp_path: Path) -> None:
    done = start(stack, torchrun("zero2", standin, tmp_path), standin, standin / "finetune")
    assert done.rc != 0, str(done)
    assert BARE[stack] in done.output, str(done)


@pytest.mark.parametrize("zero", ["zero3", "zero2"] if FULL else ["zero3"])
@pytest.mark.parametrize("stack", LAUNCHED if FULL else [TF445, TF524])
def test_torchrun_of_the_unchanged_script(stack: str, zero: str, standin: Path, tmp_path: Path) -> None:
    """Training, evaluation, checkpoints and the last save."""
    command = torchrun(zero, standin, tmp_path)
    done = start(stack, [*RUN, *command], standin, standin / "finetune")
    assert done.rc == 0, str(done)
    saved = {path.name for path in tmp_path.iterdir()}
    assert {"checkpoint-1", "checkpoint-2", "tokenizer_config.json", LAST_SAVE} <= saved


@pytest.mark.slow
def test_torchrun_cannot_load_the_model_without_the_masks(standin: Path, tmp_path: Path) -> None:
    command = [*RUN, *torchrun("zero3", standin, tmp_path)]
    off = {"VLMPATCH_DISABLE": "removed-mask-module"}
    done = start(TF524, command, standin, standin / "finetune", **off)
    assert done.rc != 0, str(done)
    assert "No module named 'transformers.modeling_attn_mask_utils'" in done.output, str(done)


@pytest.mark.slow
def test_torchrun_stops_at_its_first_save_without_the_patch(standin: Path, tmp_path: Path) -> None:
    """On forked ranks it is the case ``script-save-safetensors``; the first save itself: see above."""
    command = [*RUN, *torchrun("zero2", standin, tmp_path)]
    off = {"VLMPATCH_DISABLE": "trainer-save-safetensors"}
    done = start(TF523, command, standin, standin / "finetune", **off)
    assert done.rc != 0, str(done)
    assert "has no attribute 'save_safetensors'" in done.output, str(done)


@pytest.mark.slow
def test_torchrun_saves_no_model_without_the_patch(standin: Path, tmp_path: Path) -> None:
    command = [*RUN, *torchrun("zero2", standin, tmp_path)]
    off = {"VLMPATCH_DISABLE": "training-arguments-local-rank"}
    done = start(TF523, command, standin, standin / "finetune", **off)
    assert done.rc == 0, str(done)
    saved = {path.name for path in tmp_path.iterdir()}
    assert "checkpoint-2" in saved
    assert LAST_SAVE not in saved


@pytest.mark.parametrize("zero", ["zero2", "zero3"] if FULL else ["zero2"])
@pytest.mark.parametrize("kind", ["dpo", "sft"] if FULL else ["dpo"])
def test_swift(kind: str, zero: str, standin: Path, tmp_path: Path) -> None:
    """What this project began with: MiniCPM-V-2.6, DPO, a trainable vision tower, more slices than fit."""
    stack = envs.read_stacks()["swift341"]
    words = command_of(kind, zero, standin, tmp_path / "off" / "saved", stack.name)
    env = {"HF_MODULES_CACHE": str(standin / "modules" / stack.name)}
    off = ("--gradient_checkpointing", "false")
    right = on_forked_ranks(stack, [*words, *off], tmp_path / "off", env, gloo=True, waiting=True)
    is_right(swift(kind, zero, standin, tmp_path / "on"), right)


def test_swift_without_the_patch_reduces_twice(standin: Path, tmp_path: Path) -> None:
    off = {"VLMPATCH_DISABLE": "swift-checkpoint-override"}
    died(swift("dpo", "zero2", standin, tmp_path, **off), REDUCED_TWICE)


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["swift360", "swift460"])
def test_swift_since_3_6(stack: str, standin: Path, tmp_path: Path) -> None:
    """ms-swift takes it for a causal language model, whose code then lacks what PEFT looks for."""
    off = {"VLMPATCH_DISABLE": "peft-generation-inputs"}
    without = swift("sft", "zero2", standin, tmp_path / "without", stack=stack, **off)
    assert without.finished.rc != 0, str(without.finished)
    assert NO_INPUTS in without.finished.output, str(without.finished)
    measure = ("--gradient_checkpointing", "false")
    right = swift("sft", "zero2", standin, tmp_path / "off", *measure, stack=stack)
    is_right(swift("sft", "zero2", standin, tmp_path / "on", stack=stack), right)


def swift(
    kind: str, zero: str, standin: Path, out: Path, *after: str, stack: str = "swift341", **env: str
) -> Training:
    command = [*RUN, *command_of(kind, zero, standin, out, stack), *after]
    env |= {"NPROC_PER_NODE": "2", "USE_HF": "1"}
    return Training(start(stack, command, standin, standin, **env), out)


def command_of(kind: str, zero: str, standin: Path, out: Path, stack: str) -> list[str | Path]:
    model = {"MODEL": str(standin / "model"), "qwen2_vl": "minicpmv2_6"}
    words: list[str | Path] = [model.get(word, word) for word in SWIFT.split()]
    words += [TUNER[stack], "lora", "--dataset", standin / f"{kind}.jsonl", "--deepspeed", zero]
    return ["swift", *VERBS[kind], *words, "--output_dir", out]
