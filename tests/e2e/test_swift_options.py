"""ms-swift 4.6.0's own options, two micro-batches a step, on rows of which every third has no image.

Its tuners and adapters, its trainers for preferences, its layers that are unfrozen in turn (LISA), its rates
by part and its sequence parallelism, each under ZeRO-2 and ZeRO-3. What is right is what the same command
prints under DDP without checkpointing. Rows are taken in their order; those of pairs of answers (``PAIRS``)
all have an image. Not here: what begins with other random numbers under ZeRO-3 (the head of a classifier
or a reward model), which is asked under ZeRO-2 alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import mixed_frameworks
from tests.e2e.test_launchers import ON_CPU, PRINTED, SWIFT, Training
from tests.lab import envs, forked, launch

pytestmark = pytest.mark.slow
STACK = "swift460"
ENGINES = {"zero2": "--deepspeed zero2", "zero3": "--deepspeed zero3"}
RIGHT = f"--ddp_find_unused_parameters true {ON_CPU} --gradient_checkpointing false"
FULL, LORA = "--tuner_type full --freeze_aligner false", "--tuner_type lora"
IN_ORDER = "--dataset_shuffle false --train_dataloader_shuffle false --dataset_num_proc 1"
SAID = (
    f"{SWIFT} {IN_ORDER} --gradient_accumulation_steps 2 --max_steps 3 --learning_rate 1e-3 --warmup_ratio 0"
)
OPTIONS = {  # the words of an option, after the verb
    "full": f"sft {FULL}",
    "lora": f"sft {LORA}",
    "tower-without-checkpointing": f"sft {FULL} --vit_gradient_checkpointing false",
    "reentrant": f'sft {LORA} --gradient_checkpointing_kwargs {{"use_reentrant":true}}',
    "non-reentrant": f'sft {LORA} --gradient_checkpointing_kwargs {{"use_reentrant":false}}',
    "tower-alone": f"sft {FULL} --freeze_llm true",
    "rates-by-part": f"sft {FULL} --vit_lr 1e-4 --aligner_lr 1e-4",
    "lisa": f"sft {FULL} --lisa_activated_layers 1 --lisa_step_interval 2",
    "sequence-parallel": f"sft {FULL} --sequence_parallel_size 2",
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
    "adalora": "sft --tuner_type adalora",
    "classifier": f"sft {LORA} --task_type seq_cls --num_labels 2",
    "dpo": f"rlhf --rlhf_type dpo {LORA}",
    "dpo-full": f"rlhf --rlhf_type dpo {FULL}",
    "kto": f"rlhf --rlhf_type kto {LORA} --per_device_train_batch_size 2",
    "orpo": f"rlhf --rlhf_type orpo {LORA}",
    "simpo": f"rlhf --rlhf_type simpo {LORA}",
    "reward": f"rlhf --rlhf_type rm {LORA}",
}
ZERO2_ALONE = ("classifier", "reward")
CELLS = [
    (name, engine) for name in OPTIONS for engine in ENGINES if engine == "zero2" or name not in ZERO2_ALONE
]
PAIRS = ("dpo", "dpo-full", "orpo", "simpo", "reward")
Trainings = dict[tuple[str, str], Training]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    """Every option under every engine, and as it is right, in forks of one process."""
    stack, folder = envs.read_stacks()[STACK], tmp_path_factory.mktemp("options")
    envs.make(stack)
    model = launch.checkpoint(stack, "qwen2_vl")
    jobs = {
        (name, engine): forked.job_of(["swift", *words_of(name, engine, model, folder)])
        for name, engine in [*((name, "right") for name in OPTIONS), *CELLS]
    }
    ran = forked.run(
        stack,
        [*jobs.values()],
        folder / "out",
        imports=forked.SWIFT[STACK],
        env={"NPROC_PER_NODE": "2", "USE_HF": "1"},
        gloo=True,
        waiting=True,
    )
    return {key: Training(ran[job], folder) for key, job in jobs.items()}


def words_of(name: str, engine: str, model: Path, folder: Path) -> list[str]:
    """ms-swift's words; the last of two that say the same thing is heard."""
    verb, *option = OPTIONS[name].split()
    option += {"right": RIGHT, **ENGINES}[engine].split()
    said = [word.replace("MODEL", str(model)) for word in SAID.split()]
    places = ["--dataset", str(data_of(name, model, folder)), "--output_dir", str(folder / name / engine)]
    return [verb, *places, *said, *option]


def data_of(name: str, model: Path, folder: Path) -> Path:
    if name in PAIRS:
        return model / "data" / "dpo.jsonl"
    mixed = mixed_frameworks.rows(model, folder)
    if name not in ("kto", "classifier"):
        return mixed
    rows = [
        json.loads(line) | {"label": number % 2} for number, line in enumerate(mixed.read_text().splitlines())
    ]
    if name == "classifier":
        rows = [row | {"messages": row["messages"][:1]} for row in rows]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("name", "engine"), CELLS)
def test_an_option_prints_what_ddp_prints(name: str, engine: str, trainings: Trainings) -> None:
    right, trained = trainings[name, "right"], trainings[name, engine]
    for run in (right, trained):
        assert run.finished.rc == 0, str(run.finished)
    assert len(right.printed()) == 6, str(right.finished)
    assert trained.printed() == pytest.approx(right.printed(), rel=PRINTED), str(trained.finished)
