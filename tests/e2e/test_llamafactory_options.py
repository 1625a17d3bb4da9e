"""LLaMA-Factory's own options, two micro-batches a step, under DDP, ZeRO-2 and ZeRO-3.

Its stages, its ways to tune and to freeze, its losses and optimizers, on rows of which every third has no
image. What is right is what the same configuration prints under DDP without checkpointing; where a loss of
evaluation is printed it is compared too. Not here: what 0.9.3 refuses (PiSSA, generation and ``pure_bf16``
under ZeRO-3, GaLore and APOLLO under DeepSpeed), what fails in it with and without vlmpatch and for other
reasons (its Muon under ZeRO, Adam-mini on a model with a tower, a reward model of Qwen2-VL, one of LLaVA that
is saved whole; in 0.9.5 KTO, and ``neat_packing`` of rows without an image), what begins with other random
numbers under ZeRO-3 (LLaVA's adapters in 0.9.5), and Adafactor and bfloat16, which round otherwise there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e import mixed_frameworks
from tests.e2e.mixed_frameworks import USUAL, Option, Said, deepspeed, print_the_same
from tests.e2e.test_launchers import Training
from tests.e2e.test_mixed_llamafactory import SETTINGS
from tests.families._shared.files import SHAREGPT
from tests.lab import envs, forked, launch
from tests.lab.envs import Stack

pytestmark = pytest.mark.slow
IMPORTS = (*forked.STACK, "deepspeed", "llamafactory.train.tuner")
UNSLOTH = "tests/programs/train_llamafactory_unsloth.py"


CPU: Said = {"use_cpu": True, "ddp_backend": "gloo"}
ENGINES: dict[str, Said] = {
    "right": CPU | {"ddp_find_unused_parameters": True, "disable_gradient_checkpointing": True},
    "ddp": CPU,
    "searching": CPU | {"ddp_find_unused_parameters": True},
    "zero2": {"deepspeed": deepspeed(2)},
    "zero3": {"deepspeed": deepspeed(3)},
    "offloaded": {"deepspeed": deepspeed(3, offload_param={"device": "cpu"})},
}
FULL: Said = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}
FROZEN: Said = {"freeze_vision_tower": True, "freeze_multi_modal_projector": True}
LANGUAGE: Said = {**FROZEN, "finetuning_type": "lora"}
LORA: Said = {**LANGUAGE, "freeze_vision_tower": False}
FREEZE: Said = {**FROZEN, "finetuning_type": "freeze", "freeze_trainable_layers": 1}
DPO: Said = {"stage": "dpo", "dataset": "pairs"}
KTO: Said = {"stage": "kto", "dataset": "kto", "per_device_train_batch_size": 2}
RM: Said = {"stage": "rm", "dataset": "pairs"}
PT: Said = {"stage": "pt", "dataset": "text", "cutoff_len": 32}
PACKED: Said = {"packing": True, "neat_packing": True, "cutoff_len": 128}
EVALUATED: Said = {
    "val_size": 0.25,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "per_device_eval_batch_size": 1,
}
BEST = EVALUATED | {"save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True}
OFT: Said = {"finetuning_type": "oft", "oft_target": "all", "oft_rank": 0, "oft_block_size": 8}
HEAD: Said = {"additional_target": "embed_tokens,lm_head"}
ZERO = ("zero2", "zero3")
EVERYWHERE = (*USUAL, "searching", "offloaded")


OF_BOTH = {
    "full": Option(FULL, EVERYWHERE),
    "frozen-tower": Option(FULL | {"freeze_vision_tower": True}),
    "language-model-frozen": Option(FULL | {"freeze_language_model": True}),
    "tower-alone": Option(FROZEN | {"freeze_vision_tower": False, "freeze_language_model": True}),
    "trainer-checkpointing": Option(FULL | {"gradient_checkpointing": True}, EVERYWHERE),
    "lora": Option(LORA, EVERYWHERE),
    "lora-reentrant": Option(LORA | {"use_reentrant_gc": True}),
    "lora-trainer-checkpointing": Option(LORA | {"gradient_checkpointing": True}, EVERYWHERE),
    "lora-language-model": Option(LANGUAGE),
    "lora-and-head": Option(LANGUAGE | HEAD),
    "lora-and-merger": Option(LORA | {"additional_target": "visual.merger"}),
    "dora": Option(LORA | {"use_dora": True}),
    "lora-plus": Option(LORA | {"loraplus_lr_ratio": 16}),
    "pissa": Option(LORA | {"pissa_init": True, "pissa_iter": -1}, ("ddp", "zero2")),
    "freeze": Option(FREEZE),
    "freeze-and-tower": Option(FREEZE | {"freeze_vision_tower": False}, EVERYWHERE),
    "freeze-and-embeddings": Option(FREEZE | {"freeze_extra_modules": "embed_tokens,norm"}),
    "neftune": Option(LORA | {"neftune_noise_alpha": 5}),
    "pretraining": Option(PT | FULL),
    "evaluated": Option(LORA | EVALUATED | {"compute_accuracy": True}),
    "best-at-end": Option(FULL | BEST),
    "larger-batches": Option(FULL | {"per_device_train_batch_size": 2}),
    "dpo": Option(DPO | LORA, EVERYWHERE),
    "dpo-full": Option(DPO | FULL, EVERYWHERE),
    "dpo-reentrant": Option(DPO | LORA | {"use_reentrant_gc": True}),
    "dpo-and-head": Option(DPO | LORA | HEAD),
    "dpo-with-sft": Option(DPO | LORA | {"pref_ftx": 1.0}),
    "orpo": Option(DPO | LORA | {"pref_loss": "orpo"}),
    "simpo": Option(DPO | LORA | {"pref_loss": "simpo"}),
    "llava": Option(FULL, USUAL, "llava_files"),
}
OPTIONS: dict[str, dict[str, Option]] = {
    "llamafactory093": OF_BOTH
    | {
        "llava-lora": Option(LORA, USUAL, "llava_files"),
        "llava-reward": Option(RM | LORA, ("ddp", "zero2"), "llava_files"),
        "projector-frozen": Option(FULL | {"freeze_multi_modal_projector": True}),
        "projector-alone": Option(FULL | {"freeze_vision_tower": True, "freeze_language_model": True}),
        "reentrant": Option(FULL | {"use_reentrant_gc": True}),
        "trainer-checkpointing-alone": Option(
            LORA | {"gradient_checkpointing": True, "disable_gradient_checkpointing": True}
        ),
        "unsloth": Option(FULL | {"use_unsloth_gc": True}),
        "unsloth-dpo": Option(DPO | LORA | {"use_unsloth_gc": True}),
        "lora-tower-alone": Option(LORA | {"freeze_language_model": True}),
        "lora-on-two": Option(LANGUAGE | {"lora_target": "q_proj,v_proj"}),
        "new-tokens": Option(LANGUAGE | {"add_tokens": "<alpha>,<beta>", "resize_vocab": True}),
        "rslora": Option(LORA | {"use_rslora": True}),
        "pissa-converted": Option(
            LORA | {"pissa_init": True, "pissa_iter": -1, "pissa_convert": True}, ("ddp", "zero2")
        ),
        "freeze-first": Option(FREEZE | {"freeze_trainable_layers": -1, "freeze_vision_tower": False}),
        "freeze-and-projector": Option(FREEZE | {"freeze_multi_modal_projector": False}),
        "llama-pro": Option(FREEZE | {"use_llama_pro": True}),
        "lora-llama-pro": Option(LORA | {"use_llama_pro": True, "freeze_trainable_layers": 1}),
        "pretraining-packed": Option(PT | LANGUAGE | {"packing": True}),
        "neat-packing": Option(PACKED | FULL),
        "neat-packing-lora": Option(PACKED | LORA),
        "history-masked": Option(LORA | {"mask_history": True}),
        "prompt-trained": Option(LORA | {"train_on_prompt": True}),
        "layernorm-in-float32": Option(LORA | {"upcast_layernorm": True}),
        "eager-attention": Option(LORA | {"flash_attn": "disabled"}),
        "shifted-attention": Option(LANGUAGE | {"shift_attn": True}),
        "clipped": Option(FULL | {"max_grad_norm": 0.1}),
        "saved": Option(LORA | {"save_strategy": "steps", "save_steps": 1}),
        "by-length": Option(LORA | {"group_by_length": True, "disable_shuffling": False}),
        "dpo-freeze": Option(DPO | FREEZE),
        "dpo-full-reentrant": Option(DPO | FULL | {"use_reentrant_gc": True}),
        "dpo-ipo": Option(DPO | LORA | {"pref_loss": "ipo"}),
        "dpo-hinge": Option(DPO | LORA | {"pref_loss": "hinge"}),
        "dpo-length": Option(DPO | LORA | {"ld_alpha": 0.5}),
        "dpo-dora": Option(DPO | LORA | {"use_dora": True}),
        "dpo-evaluated": Option(DPO | LORA | EVALUATED),
        "orpo-full": Option(DPO | FULL | {"pref_loss": "orpo"}),
        "simpo-full": Option(DPO | FULL | {"pref_loss": "simpo"}),
        "kto": Option(KTO | LORA),
        "kto-full": Option(KTO | FULL),
        "kto-with-sft": Option(KTO | LORA | {"pref_ftx": 1.0}),
    },
    "llamafactory095": OF_BOTH
    | {
        "llava-lora": Option(LORA, ("ddp", "zero2"), "llava_files"),
        "oft": Option(OFT),
        "dft": Option(LORA | {"use_dft_loss": True}),
        "asft": Option(FULL | {"use_asft_loss": True}),
        "eaft": Option(LORA | {"use_eaft_loss": True}),
        "dpo-bco": Option(DPO | LORA | {"pref_bco_weight": 0.5}),
    },
}
CELLS = [
    (stack, name, engine)
    for stack, options in OPTIONS.items()
    for name, option in options.items()
    for engine in option.engines
]
Trainings = dict[tuple[str, str], Training]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trainings]:
    """Every option of a stack under every engine, and as it is right, in forks of one process."""
    return functools.cache(lambda name: trained(envs.read_stacks()[name], tmp_path_factory.mktemp(name)))


def trained(stack: Stack, folder: Path) -> Trainings:
    envs.make(stack)
    models = launch.checkpoints(stack, {option.kind for option in OPTIONS[stack.name].values()})
    for kind, model in models.items():
        write_rows(model, folder / kind)
    right = [(name, "right") for name in OPTIONS[stack.name]]
    asked = [(name, engine) for each, name, engine in CELLS if each == stack.name]
    jobs = {
        (name, engine): job_of(OPTIONS[stack.name][name], models, engine, folder, folder / name / engine)
        for name, engine in [*right, *asked]
    }
    ran = forked.run(stack, [*jobs.values()], folder / "out", imports=IMPORTS, gloo=True, waiting=True)
    return {key: Training(ran[job], folder) for key, job in jobs.items()}


def job_of(option: Option, models: dict[str, Path], engine: str, data: Path, output: Path) -> forked.Job:
    """What ``llamafactory-cli train`` runs on each rank; a configuration of JSON is one of YAML too."""
    places = {"model_name_or_path": str(models[option.kind]), "dataset_dir": str(data / option.kind)}
    steps = {"gradient_accumulation_steps": 2, "max_steps": 3, "learning_rate": 1e-3}
    template = {"template": option.kind.removesuffix("_files"), "output_dir": str(output / "saved")}
    said = {**SETTINGS, **steps, **places, **template, **option.said, **ENGINES[engine]}
    output.mkdir(parents=True)
    (output / "train.yaml").write_text(json.dumps(said))
    unsloth = option.said.get("use_unsloth_gc", False)
    started = (UNSLOTH,) if unsloth else ("-m", "llamafactory.launcher")
    return forked.Job((*started, str(output / "train.yaml")))


def write_rows(model: Path, folder: Path) -> None:
    """The mixed rows as LLaMA-Factory has them for its stages, and what describes them."""
    folder.mkdir()
    rows = [json.loads(line) for line in mixed_frameworks.rows(model, folder).read_text().splitlines()] * 2
    worse = {"role": "assistant", "content": "hello world"}
    text = "hello world describe the image a cat user assistant system "
    written = {
        "sft": rows,
        "pairs": [
            {**row, "messages": row["messages"][:1], "chosen": row["messages"][1], "rejected": worse}
            for row in rows
        ],
        "kto": [{**row, "label": number % 2 == 0} for number, row in enumerate(rows)],
        "text": [{"text": text * (1 + number % 3)} for number in range(64)],
    }
    columns: Said = {"messages": "messages", "images": "images"}
    pair = columns | {"chosen": "chosen", "rejected": "rejected"}
    described: Said = {
        "sft": SHAREGPT,
        "pairs": {**SHAREGPT, "ranking": True, "columns": pair},
        "kto": {**SHAREGPT, "columns": columns | {"kto_tag": "label"}},
        "text": {"columns": {"prompt": "text"}},
    }
    for name, lines in written.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    info = {name: {"file_name": f"{name}.jsonl", **said} for name, said in described.items()}
    (folder / "dataset_info.json").write_text(json.dumps(info))


@pytest.mark.parametrize(("stack", "name", "engine"), CELLS)
def test_an_option_prints_what_ddp_prints(
    stack: str, name: str, engine: str, trainings: Callable[[str], Trainings]
) -> None:
    found = trainings(stack)
    print_the_same(found[name, "right"], found[name, engine], steps=3)
