"""ms-swift's own options, two micro-batches a step, on rows of which every third has no image.

Its tuners and adapters, its trainers for preferences, its layers that are unfrozen in turn (LISA), its rates
by part and its sequence parallelism, each under ZeRO-2 and ZeRO-3, those of 3.4.1 under DDP as well. What is
right is what the same command prints under DDP without checkpointing. Rows are taken in their order; those of
pairs of answers (``PAIRS``) all have an image. Not here: what begins with other random numbers under ZeRO-3
(the head of a classifier or a reward model), which is not asked there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e import mixed_frameworks
from tests.e2e.test_launchers import ON_CPU, PRINTED, SWIFT, Training
from tests.lab import envs, forked, launch
from tests.lab.envs import Stack

pytestmark = pytest.mark.slow
RIGHT = f"--ddp_find_unused_parameters true {ON_CPU} --gradient_checkpointing false"
ENGINES = {"right": RIGHT, "ddp": ON_CPU, "zero2": "--deepspeed zero2", "zero3": "--deepspeed zero3"}
ASKED = {"swift460": ("zero2", "zero3"), "swift341": ("ddp", "zero2", "zero3")}
FULL, LORA = "--tuner_type full --freeze_aligner false", "--tuner_type lora"
NON_REENTRANT = '--gradient_checkpointing_kwargs {"use_reentrant":false}'
IN_ORDER = "--dataset_shuffle false --train_dataloader_shuffle false --dataset_num_proc 1"
SAID = (
    f"{SWIFT} {IN_ORDER} --gradient_accumulation_steps 2 --max_steps 3 --learning_rate 1e-3 --warmup_ratio 0"
)
NAMED = "visual.merger model.norm"
OF_BOTH = {  # the words of an option, after the verb
    "full": f"sft {FULL}",
    "lora": f"sft {LORA}",
    "reentrant": f'sft {LORA} --gradient_checkpointing_kwargs {{"use_reentrant":true}}',
    "non-reentrant": f"sft {LORA} {NON_REENTRANT}",
    "tower-alone": f"sft {FULL} --freeze_llm true",
    "lisa": f"sft {FULL} --lisa_activated_layers 1 --lisa_step_interval 2",
    "larger-batches": f"sft {FULL} --per_device_train_batch_size 2",
    "evaluated": f"sft {LORA} --split_dataset_ratio 0.25 --eval_steps 2",
    "streamed": f"sft {LORA} --streaming true",
    "dora": f"sft {LORA} --use_dora true",
    "lora-plus": f"sft {LORA} --lorap_lr_ratio 16",
    "modules-to-save": f"sft {LORA} --modules_to_save embed_tokens lm_head",
    "neftune": f"sft {LORA} --neftune_noise_alpha 5",
    "pissa": f"sft {LORA} --init_weights pissa",
    "boft": "sft --tuner_type boft",
    "vera": "sft --tuner_type vera --target_modules q_proj",
    "classifier": f"sft {LORA} --task_type seq_cls --num_labels 2",
    "dpo": f"rlhf --rlhf_type dpo {LORA}",
    "dpo-full": f"rlhf --rlhf_type dpo {FULL}",
    "kto": f"rlhf --rlhf_type kto {LORA} --per_device_train_batch_size 2",
    "orpo": f"rlhf --rlhf_type orpo {LORA}",
    "simpo": f"rlhf --rlhf_type simpo {LORA}",
    "reward": f"rlhf --rlhf_type rm {LORA}",
}
OPTIONS = {
    "swift460": OF_BOTH
    | {
        "tower-without-checkpointing": f"sft {FULL} --vit_gradient_checkpointing false",
        "rates-by-part": f"sft {FULL} --vit_lr 1e-4 --aligner_lr 1e-4",
        "sequence-parallel": f"sft {FULL} --sequence_parallel_size 2",
        "adalora": "sft --tuner_type adalora",
    },
    "swift341": OF_BOTH
    | {
        "full-non-reentrant": f"sft {FULL} {NON_REENTRANT}",
        "language-model-alone": f"sft {LORA} --freeze_vit true",
        "aligner-alone": f"sft {FULL} --freeze_llm true --freeze_vit true",
        "half-frozen": f"sft {FULL} --freeze_parameters_ratio 0.5",
        "named-alone": f"sft {FULL} --freeze_parameters_ratio 1 --trainable_parameters {NAMED}",
        "lora-of-all": f"sft {LORA} --freeze_aligner false",
        "biases": f"sft {LORA} --lora_bias all",
        "merger-to-save": f"sft {LORA} --freeze_vit true --modules_to_save merger",
        "rslora": f"sft {LORA} --use_rslora true",
        "olora": f"sft {LORA} --init_weights olora",
        "own-lora": f"sft {LORA} --use_swift_lora true",
        "adalora": "sft --tuner_type adalora --adalora_tinit 1 --adalora_tfinal 1",
        "bone": "sft --tuner_type bone",
        "fourierft": "sft --tuner_type fourierft --fourier_n_frequency 20",
        "eager-attention": f"sft {LORA} --attn_impl eager",
        "mean-of-sequences": f"sft {FULL} --acc_strategy seq",
        "clipped": f"sft {FULL} --max_grad_norm 0.1",
        "dpo-non-reentrant": f"rlhf --rlhf_type dpo {LORA} {NON_REENTRANT}",
        "dpo-ipo": f"rlhf --rlhf_type dpo --loss_type ipo --rpo_alpha 0.1 {LORA}",
        "dpo-dora": f"rlhf --rlhf_type dpo --use_dora true {LORA}",
        "dpo-modules-to-save": f"rlhf --rlhf_type dpo --modules_to_save lm_head {LORA}",
        "kto-full": f"rlhf --rlhf_type kto {FULL} --per_device_train_batch_size 2",
        "orpo-full": f"rlhf --rlhf_type orpo {FULL}",
        "cpo-full": f"rlhf --rlhf_type cpo {FULL}",
    },
}
NOT_UNDER_ZERO3 = ("classifier", "reward")
CELLS = [
    (stack, name, engine)
    for stack, options in OPTIONS.items()
    for name in options
    for engine in ASKED[stack]
    if engine != "zero3" or name not in NOT_UNDER_ZERO3
]
PAIRS = ("dpo", "orpo", "simpo", "cpo", "reward")  # and what begins so
Trainings = dict[tuple[str, str], Training]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trainings]:
    """Every option of a stack under every engine, and as it is right, in forks of one process."""
    return functools.cache(lambda name: trained(envs.read_stacks()[name], tmp_path_factory.mktemp(name)))


def trained(stack: Stack, folder: Path) -> Trainings:
    envs.make(stack)
    model = launch.checkpoint(stack, "qwen2_vl")
    right = [(name, "right") for name in OPTIONS[stack.name]]
    asked = [(name, engine) for each, name, engine in CELLS if each == stack.name]
    jobs = {
        (name, engine): forked.job_of(["swift", *words_of(stack.name, name, engine, model, folder)])
        for name, engine in [*right, *asked]
    }
    ran = forked.run(
        stack,
        [*jobs.values()],
        folder / "out",
        imports=forked.SWIFT[stack.name],
        env={"NPROC_PER_NODE": "2", "USE_HF": "1"},
        gloo=True,
        waiting=True,
    )
    return {key: Training(ran[job], folder) for key, job in jobs.items()}


def words_of(stack: str, name: str, engine: str, model: Path, folder: Path) -> list[str]:
    """ms-swift's words; the last of two that say the same thing is heard."""
    verb, *option = OPTIONS[stack][name].split()
    option += ENGINES[engine].split()
    said = [word.replace("MODEL", str(model)) for word in SAID.split()]
    places = ["--dataset", str(data_of(name, model, folder)), "--output_dir", str(folder / name / engine)]
    words = [verb, *places, *said, *option]
    if stack == "swift460":
        return words
    old = [word.replace("--tuner_type", "--train_type") for word in words]
    return [*old, "--dataloader_num_workers", "0"]  # its own cost more than they load


def data_of(name: str, model: Path, folder: Path) -> Path:
    if name.startswith(PAIRS):
        return model / "data" / "dpo.jsonl"
    mixed = mixed_frameworks.rows(model, folder)
    if not name.startswith(("kto", "classifier")):
        return mixed
    rows = [
        json.loads(line) | {"label": number % 2} for number, line in enumerate(mixed.read_text().splitlines())
    ]
    if name == "classifier":
        rows = [row | {"messages": row["messages"][:1]} for row in rows]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("stack", "name", "engine"), CELLS)
def test_an_option_prints_what_ddp_prints(
    stack: str, name: str, engine: str, trainings: Callable[[str], Trainings]
) -> None:
    found = trainings(stack)
    right, patched = found[name, "right"], found[name, engine]
    for run in (right, patched):
        assert run.finished.rc == 0, str(run.finished)
    assert len(right.printed()) == 6, str(right.finished)
    assert patched.printed() == pytest.approx(right.printed(), rel=PRINTED), str(patched.finished)
