"""axolotl's own options, two micro-batches a step, under DDP, ZeRO-2, ZeRO-3 and FSDP.

Its ways to checkpoint, to search for unused parameters, to tune and to freeze, on rows of which every third
has no image. What is right is what the same configuration prints under DDP without checkpointing; where a
loss of evaluation is printed it is compared too. Not here: what ends with and without vlmpatch (DoRA under
ZeRO-3, whose parameters PEFT does not gather beside axolotl; LLaVA, which leaves a part of its tower unused,
where the file says ``ddp_find_unused_parameters: false`` or ``use_reentrant: true``), and LLaVA's adapters
under ZeRO-3, which begin with other random numbers there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import mixed_frameworks
from tests.e2e.mixed_frameworks import USUAL, Option, Said, deepspeed, print_the_same
from tests.e2e.test_launchers import Training
from tests.lab import envs, forked, in_parts, launch

pytestmark = pytest.mark.slow
STACK = "axolotl019"
PROGRAM = "tests/programs/train_axolotl.py"
IMPORTS = (*forked.STACK, "deepspeed", "axolotl.train", "axolotl.cli.train", "axolotl.cli.config")
SETTINGS: Said = {
    "processor_type": "AutoProcessor",
    "chat_template": "tokenizer_default",
    "skip_prepare_dataset": True,
    "remove_unused_columns": False,
    "sequence_len": 512,
    "pad_to_sequence_len": False,
    "attn_implementation": "eager",
    "fp16": False,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "max_steps": 3,
    "num_epochs": 1,
    "learning_rate": 1e-3,
    "optimizer": "adamw_torch",
    "lr_scheduler": "constant",
    "warmup_steps": 0,
    "max_grad_norm": 0.0,
    "logging_steps": 1,
    "save_strategy": "no",
    "gradient_checkpointing": True,
    **dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"), False),
}
SEARCH: Said = {"ddp_find_unused_parameters": True}
OFF: Said = {"gradient_checkpointing": False}
ENGINES: dict[str, Said] = {
    "right": OFF | SEARCH,
    "ddp": {},
    "zero2": {"deepspeed": deepspeed(2)},
    "zero3": {"deepspeed": deepspeed(3)},
}
FSDP = {
    "offload_params": False,
    "cpu_ram_efficient_loading": False,
    "sync_module_states": False,
    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "state_dict_type": "FULL_STATE_DICT",
}
ENGINES |= {
    "fsdp1": {"fsdp_version": 1, "fsdp_config": FSDP | {"use_orig_params": True}},
    "fsdp2": {"fsdp_version": 2, "fsdp_config": FSDP | {"reshard_after_forward": True}},
}
CHECKPOINTING = ("gradient_checkpointing_kwargs", "activation_offloading", "selective_checkpointing")
REENTRANT: Said = {"gradient_checkpointing_kwargs": {"use_reentrant": True}}
NON_REENTRANT: Said = {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
HIDDEN: Said = {"activation_offloading": "hidden_states"}
TOWER = r".*(layers|blocks)\.[0-9]+\..*(proj|qkv|fc1|fc2)"
LORA: Said = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_target_modules": TOWER}
LANGUAGE: Said = LORA | {"lora_target_modules": r".*language_model.*(q_proj|v_proj)"}
EVALUATED: Said = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": False}
EVERYWHERE = (*USUAL, "fsdp1", "fsdp2")


OPTIONS = {
    "full": Option({}, EVERYWHERE),
    "reentrant": Option(REENTRANT),
    "non-reentrant": Option(NON_REENTRANT, ("ddp",)),
    "without-checkpointing": Option(OFF, ("ddp", "zero3")),
    "searching": Option(SEARCH, ("ddp",)),
    "searching-reentrant": Option(SEARCH | REENTRANT, ("ddp",)),
    "hidden-states-offloaded": Option(HIDDEN),
    "selective-checkpointing": Option({"selective_checkpointing": True}, ("ddp", "zero3")),
    "llava": Option({}, USUAL, "llava_files"),
    "llava-without-checkpointing": Option(OFF, ("ddp",), "llava_files"),
    "llava-lora": Option(LORA, ("ddp", "zero2"), "llava_files"),
    "llava-lora-without-checkpointing": Option(LORA | OFF, ("ddp",), "llava_files"),
    "lora": Option(LORA, EVERYWHERE),
    "lora-reentrant": Option(LORA | REENTRANT),
    "lora-non-reentrant": Option(LORA | NON_REENTRANT),
    "lora-hidden-states-offloaded": Option(LORA | HIDDEN, ("ddp", "zero2")),
    "lora-language-model": Option(LANGUAGE),
    "lora-and-head": Option(LANGUAGE | {"lora_modules_to_save": ["embed_tokens", "lm_head"]}),
    "dora": Option(LORA | {"peft_use_dora": True}, ("ddp", "zero2")),
    "unfrozen": Option({"unfrozen_parameters": ["model.language_model.layers.1", "lm_head"]}),
    "tower-and-head-unfrozen": Option({"unfrozen_parameters": ["model.visual.blocks.1", "lm_head"]}),
    "frozen-tower": Option({"freeze_mm_modules": True}),
    "larger-batches": Option({"micro_batch_size": 2}),
    "evaluated": Option(EVALUATED, EVERYWHERE),
    "lora-evaluated": Option(LORA | EVALUATED),
}
CELLS = [(name, engine) for name, option in OPTIONS.items() for engine in option.engines]
Trainings = dict[tuple[str, str], Training]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    """Every option under its engines, and as it is right, in forks of one process."""
    stack, folder = envs.read_stacks()[STACK], tmp_path_factory.mktemp("options")
    envs.make(stack)
    models = launch.checkpoints(stack, {option.kind for option in OPTIONS.values()})
    for kind, model in models.items():
        write_rows(model, folder / kind)
    jobs = {
        (name, engine): job_of(OPTIONS[name], models, engine, folder, folder / name / engine)
        for name, engine in [*((name, "right") for name in OPTIONS), *CELLS]
    }
    ran = forked.run(
        stack,
        [*jobs.values()],
        folder / "out",
        imports=IMPORTS,
        env={"AXOLOTL_DO_NOT_TRACK": "1"},  # a rank that reports to nobody does not end
        gloo=True,
        waiting=True,
    )
    return {key: Training(ran[job], folder) for key, job in jobs.items()}


def job_of(option: Option, models: dict[str, Path], engine: str, data: Path, output: Path) -> forked.Job:
    """What ``axolotl train`` runs on each rank; a configuration of JSON is one of YAML too."""
    rows = {"path": str(data / option.kind / "mixed.jsonl"), **in_parts.DATASET}
    tests = {"test_datasets": [{**rows, "split": "train[:4]"}]} if "eval_steps" in option.said else {}
    places = {"output_dir": str(output / "saved"), "dataset_prepared_path": str(output / "prepared")}
    places |= {"base_model": str(models[option.kind])}
    said = {**SETTINGS, **option.said, **ENGINES[engine], **places, **tests, "datasets": [rows]}
    if engine == "right":
        said = {name: value for name, value in said.items() if name not in CHECKPOINTING}
    output.mkdir(parents=True)
    (output / "train.yaml").write_text(json.dumps(said))
    return forked.Job((PROGRAM, str(output / "train.yaml")))


def write_rows(model: Path, folder: Path) -> None:
    """The mixed rows as axolotl reads them."""
    folder.mkdir()
    path = mixed_frameworks.rows(model, folder)
    rows = [in_parts.row_of(json.loads(line)) for line in path.read_text().splitlines()] * 2
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(("name", "engine"), CELLS)
def test_an_option_prints_what_ddp_prints(name: str, engine: str, trainings: Trainings) -> None:
    print_the_same(trainings[name, "right"], trainings[name, engine], steps=3)
