"""ms-swift with arguments drawn at random: what it logs and learns, bare and with vlmpatch.

    python -m tests.e2e.drawn_swift swift460 --kinds qwen2_vl,llava_files --count 40 --seed 0

What is right is the same command under DDP that searches for unused parameters, without checkpointing and
without vlmpatch, but for F15 and F110: all losses, norms, evaluations and the parameters at the end. Every
training that vlmpatch harms or leaves wrong is printed, then how many ended how; exit status 1 where it
harmed one. A seed draws the same again; with ``--wide`` most of these are told one thing more that is rarely
used. ``tests.e2e.drawn_swift_rlhf`` draws KTO and GRPO, too, ``tests.e2e.drawn_trainer`` trainings of HF
Trainer; ``tests.e2e.test_swift_options`` takes ms-swift's options one by one.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e import drawing
from tests.e2e.drawing import ARGUMENTS, CHANCE, CHECKPOINTING, Ended, Told, some
from tests.lab import envs, forked
from tests.lab.forked import Job

SCRIPT = "tests/programs/train_swift.py"
MODELS = {  # ours, and what ms-swift calls it
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "llava_files": "llava1_5_hf",
}
KINDS = ",".join(MODELS)
OLD_ENGINES = ("ddp", "ddp", "ddp_unused", "zero1", "zero2", "zero2", "zero3", "zero3", "zero3")
ENGINES = (*OLD_ENGINES, "fsdp2")
SHARDED = ("zero3", "fsdp2")
TUNERS = ("full", "full", "full", "lora", "lora", "lora", "lora", "adalora")
VERBS = ("", "", "", "", "", "dpo", "dpo", "orpo", "simpo")
FULL: drawing.Words = {
    "vit_lr": (2e-4,),
    "aligner_lr": (2e-4,),
    "freeze_parameters_ratio": (0.5,),
}
LORA: drawing.Words = {
    "target_modules": (["q_proj", "v_proj"], ["all-linear"]),
    "modules_to_save": (["lm_head"], ["embed_tokens", "lm_head"]),
    "use_rslora": (True,),
    "use_dora": (True,),
    "lora_bias": ("all",),
    "lorap_lr_ratio": (16,),
}
OWN: drawing.Words = {
    "attn_impl": ("eager", "sdpa"),
    "loss_scale": ("last_round", "all", "ignore_empty_think"),
    "acc_strategy": ("seq",),
    "dataloader_num_workers": (1,),
    "train_dataloader_shuffle": (True,),
    "dataset_shuffle": (True,),
    "group_by_length": (True,),
    "use_logits_to_keep": (True, False),
    "max_length": (80,),
    "padding_side": ("left",),
}
TOGETHER: tuple[dict[str, Any], ...] = (  # rows behind one another, and a row on two ranks
    {"packing": True, "attn_impl": "flash_attention_2", "max_steps": 4},
    {"padding_free": True, "attn_impl": "flash_attention_2", "per_device_train_batch_size": 2},
    {"sequence_parallel_size": 2, "attn_impl": "sdpa"},
    {"sequence_parallel_size": 2, "attn_impl": "flash_attention_2"},
    {"sequence_parallel_size": 2, "attn_impl": "flash_attention_2", "packing": True, "max_steps": 4},
)
NOT_TOGETHER = ("streaming", "lazy_tokenize", "group_by_length", "acc_strategy", "padding_side")
EVALUATION: drawing.Words = {
    "prediction_loss_only": (True,),
    "eval_on_start": (True,),
    "eval_accumulation_steps": (1,),
    "per_device_eval_batch_size": (2,),
}
PAIRS = {"task_type": "embedding", "loss_type": "cosine_similarity"}
FOR_FULL: tuple[dict[str, Any], ...] = (
    {"tuner_type": "llamapro", "llamapro_num_new_blocks": 2},
    {"use_galore": True, "galore_rank": 4, "galore_target_modules": ["q_proj", "up_proj"]},
    {"freeze_parameters_ratio": 1.0, "trainable_parameters": ["lm_head", "model.embed_tokens"]},
    {"freeze_parameters_ratio": 1.0, "trainable_parameters_regex": r".*(mlp|norm).*"},
    {"freeze_parameters": ["lm_head"], "freeze_parameters_regex": r".*layers\.0\..*"},
)
FOR_LORA: tuple[dict[str, Any], ...] = (
    {"target_regex": r".*layers\.\d+\..*(q_proj|up_proj)"},
    {"target_regex": r".*(blocks|layers)\.0\..*(qkv|o_proj)", "freeze_vit": False},
)
FOR_ALL: tuple[dict[str, Any], ...] = (
    {"enable_dft_loss": True},
    {"enable_channel_loss": True},
    {"task_type": "seq_cls", "num_labels": 2},
    {"task_type": "seq_cls", "num_labels": 1, "problem_type": "regression"},
    PAIRS,
    {"packing": True, "packing_length": 140, "attn_impl": "flash_attention_2"},
)
NO_TEXT = ("use_logits_to_keep", "loss_scale", "acc_strategy", "prediction_loss_only", "group_by_length")
IMAGES = (0, 0, 1, 1, 1, 2)  # of a row
OWN_IMAGE = (
    "qwen2_vl",
    "qwen2_5_vl",
)  # their template runs the tower beside a text, too; in 3.x not under DDP
HELD = 4
SAVED = "checkpoint-2"


def drawn(stack: envs.Stack, seed: int, count: int, kinds: Sequence[str]) -> list[Told]:
    """What ``count`` trainings are told."""
    chance = random.Random(seed)
    return [draw(chance, stack.name.startswith("swift3"), kinds) for _ in range(count)]


def widened(stack: envs.Stack, seed: int, count: int, kinds: Sequence[str]) -> list[Told]:
    """The same trainings, most of them told one thing more."""
    chance = random.Random(f"wide {seed}")
    every = drawn(stack, seed, count, kinds)
    return [widen(chance, told, stack.name.startswith("swift3")) for told in every]


def widen(chance: random.Random, told: Told, old: bool) -> Told:
    """``told`` and what is said of its tuner, or of what it learns; nothing of preferences."""
    arguments = told["arguments"]
    tuner = arguments["tuner_type"]
    own = FOR_FULL if tuner == "full" else FOR_LORA if tuner == "lora" else ()
    more = chance.choice((*own, *own, *FOR_ALL))
    packed = "packing" in more and (old or told["kind"] not in OWN_IMAGE)
    if told["verb"] != "sft" or packed or "sequence_parallel_size" in arguments or "streaming" in arguments:
        return told
    without = {"target_modules"} if "target_regex" in more else set()
    if {"tuner_type", "use_galore", "freeze_parameters_ratio"} & set(more):
        without |= {"vit_lr", "aligner_lr", "freeze_parameters_ratio", "optim", "neftune_noise_alpha"}
    if "task_type" in more:
        without |= {*NO_TEXT, "packing", "padding_free", "modules_to_save"}
    if "packing" in more:
        without |= {*NOT_TOGETHER, "padding_free", "per_device_train_batch_size"}
    changed = {name: value for name, value in arguments.items() if name not in without}
    engine = "ddp_unused" if told["engine"] != "ddp" and "use_galore" in more else told["engine"]
    return {**told, "engine": engine, "arguments": {**changed, **more}}


def draw(chance: random.Random, old: bool, kinds: Sequence[str], verbs: Sequence[str] = VERBS) -> Told:
    """What one training is told; an ``old`` ms-swift is 3.x."""
    engine, kind = chance.choice(OLD_ENGINES if old else ENGINES), chance.choice(kinds)
    preset = engine.startswith("zero") and chance.random() < 0.4
    tuner = chance.choice(TUNERS)
    if tuner == "adalora" and engine in SHARDED:
        tuner = "lora"  # its penalty reads weights that are not whole
    arguments: dict[str, Any] = {
        "model_type": MODELS[kind],
        "template": MODELS[kind],
        "tuner_type": tuner,
        "gradient_accumulation_steps": chance.choice((1, 1, 2, 3)),
        "per_device_train_batch_size": chance.choice((1, 1, 2)),
        **chance.choice(({"max_steps": 4}, {"num_train_epochs": 1}, {"num_train_epochs": 2})),
        **_tuning(chance, old or kind not in OWN_IMAGE, tuner),
        **some(chance, ARGUMENTS),
        **some(chance, OWN),
        **_checkpointing(chance),
    }
    if chance.random() < 0.15:
        arguments |= {"streaming": True, "max_steps": 4, "dataset_shuffle": False}
        arguments["per_device_train_batch_size"] = 1  # there are rows enough for that
        for word in ("num_train_epochs", "group_by_length", "train_dataloader_shuffle"):
            arguments.pop(word, None)
    elif chance.random() < CHANCE:
        arguments["lazy_tokenize"] = chance.random() < 0.5
    if old:  # which makes lists of images where it does not tokenize as it goes
        arguments.pop("lazy_tokenize", None)
        arguments.pop("group_by_length", None)
    elif arguments.get("group_by_length"):
        arguments |= {"lazy_tokenize": False, "train_dataloader_shuffle": True}  # as it has to be told
    verb = chance.choice(verbs)
    if not (old or verb) and kind in OWN_IMAGE and chance.random() < CHANCE:
        arguments = {name: value for name, value in arguments.items() if name not in NOT_TOGETHER}
        arguments |= chance.choice(TOGETHER)
        if "sequence_parallel_size" in arguments:
            arguments.pop("neftune_noise_alpha", None)  # each rank draws noise for its own part of a row
            if tuner == "adalora":  # whose penalty is left out there
                arguments["tuner_type"] = "lora"
    if verb:
        arguments |= {"rlhf_type": "cpo" if verb == "simpo" else verb}
    if arguments.get("streaming") or chance.random() < 0.4:
        evaluated = {
            "eval_strategy": "steps",
            "eval_steps": chance.choice((1, 2)),
            **some(chance, EVALUATION),
        }
        arguments |= evaluated if chance.random() < 0.8 else {}
    acts: tuple[str, ...] = ("train",)
    if not engine.startswith("fsdp") and chance.random() < 0.2:
        acts = chance.choice((("train", "resume"), ("train", "resume"), ("train", "only")))
        arguments |= {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        arguments.pop("eval_on_start", None)  # the one that is resumed does so again
        arguments.pop("num_train_epochs", None)
        if arguments.get("eval_strategy") and chance.random() < 0.5:
            arguments |= {"load_best_model_at_end": True, "eval_steps": 2}
    if old and kind in OWN_IMAGE:  # a picture of its own gives a zero, none gives none: Adam tells them apart
        arguments |= {"optim": "sgd", "weight_decay": 0.0}
    if engine == "ddp" and kind == "llava_files" and tuner == "full":
        engine = "ddp_unused"  # it does not use the end of its tower, which DDP has to be told
    return {
        "kind": kind,
        "engine": engine,
        "preset": preset,
        "verb": "rlhf" if verb else "sft",
        "acts": acts,
        "arguments": arguments,
        "held": chance.choice((0, HELD)),  # rows of an evaluation's own, else some of the training's are
        "rows": [chance.choice(IMAGES) for _ in range(chance.choice((12, 13, 14)))],
        "zero": {} if preset else drawing.zero(chance, engine),
        "fsdp": {},
    }


def _tuning(chance: random.Random, alone: bool, tuner: str) -> dict[str, Any]:
    """What is trained, and how; a text may be ``alone``, without a tower beside it."""
    frozen = {f"freeze_{part}": chance.random() < share for part, share in PARTS.items()}
    if all(frozen.values()) or alone:  # which would train nothing
        frozen["freeze_llm"] = False
    return {**frozen, **some(chance, FULL if tuner == "full" else LORA if tuner == "lora" else {})}


PARTS = {"vit": 0.4, "llm": 0.3, "aligner": 0.4}


def _checkpointing(chance: random.Random) -> dict[str, Any]:
    """Said or not: ms-swift checkpoints where nothing is."""
    said = dict(chance.choice(CHECKPOINTING))
    if chance.random() < 0.1:
        said = {"gradient_checkpointing": False}
    if chance.random() < CHANCE:
        said["vit_gradient_checkpointing"] = chance.random() < 0.5
    return said


def measure(told: Told) -> Told:
    """The same where it is right: a training that is resumed ends as one that goes through."""
    arguments = {name: value for name, value in told["arguments"].items() if "checkpointing" not in name}
    held = told["held"]
    if arguments.pop("streaming", False):  # the same rows; bare a text among them cannot be collated in 4.x
        held = held or HELD
    acts = ["train" if act == "resume" else act for act in told["acts"]]
    plain = {"engine": "ddp_unused", "preset": False, "zero": {}, "fsdp": {}}
    if arguments.pop("sequence_parallel_size", 1) > 1:  # both ranks see the rows of one
        plain["world"] = 1
    return {
        **told,
        **plain,
        "acts": acts,
        "held": held,
        "arguments": {**arguments, "gradient_checkpointing": False},
    }


def perform(stack: envs.Stack, part: Sequence[Told], models: dict[str, Path], out: Path) -> list[Ended]:
    """How each ended: its measure, bare, and with vlmpatch."""

    def jobs(name: str) -> list[list[Job]]:
        every = []
        for number, told in enumerate(map(measure, part) if name == "right" else part):
            place, data = (
                out / name / f"saved-{number}",
                written(told, models[told["kind"]], out / str(number)),
            )
            where: dict[str, Any] = {
                "model": models[told["kind"]],
                "place": place,
                "data": data,
                "keeps": name == "right",
            }
            every.append(drawing.acted(told, functools.partial(job, told, **where)))
        return every

    return drawing.perform(stack, jobs, out, forked.SWIFT[stack.name])


def job(told: Told, act: str, model: Path, place: Path, data: dict[str, str], keeps: bool) -> Job:
    again = {"resume_from_checkpoint": str(place / SAVED)} if act != "train" else {}
    more = {"resume_only_model": True} if act == "only" else {}
    arguments = {"model": str(model), **data, "output_dir": str(place), **again, **more, **told["arguments"]}
    # What a checkpoint has is not what is there before it is loaded, but where nothing else loads it.
    begins = {"train": 0, "resume": 1, "only": None}[act]
    file = place.parent.parent / f"{place.name}-{'only' if act == 'only' else 'whole'}.pt"
    said = json.dumps({**told, "arguments": arguments, "begins": begins})
    words = (SCRIPT, "--told", said, "--keep" if keeps else "--right", str(file))
    return Job(words, world=told.get("world", 2), limit=60.0)


def written(told: Told, model: Path, folder: Path) -> dict[str, str]:
    """Rows as they were drawn, in ms-swift's format, and the words that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in (model / "data" / "dpo.jsonl").read_text().splitlines()]
    images = [row["images"][0] for row in known]
    rows: list[dict[str, Any]] = []
    for number, count in enumerate(told["rows"]):
        row = known[number % len(known)]
        user, answer = row["messages"]
        asked = "<image>" * count + user["content"].removeprefix("<image>")
        shown = [images[(number + other) % len(images)] for other in range(count)]
        rows.append({"messages": [{**user, "content": asked}, answer], "images": shown})
        if told["arguments"].get("rlhf_type") == "kto":
            rows[-1]["label"] = number % 2 == 0
        elif told["verb"] == "rlhf":
            rows[-1]["rejected_response"] = row["rejected_response"]
        elif told["arguments"].get("enable_channel_loss"):
            rows[-1]["channel"] = f"of {number % 2}"
        elif told["arguments"].get("task_type") == "embedding":
            other = {"messages": [answer | {"role": "user"}], "label": number % 2}
            rows[-1] |= {"positive_messages": [other.pop("messages")], **other}
            rows[-1]["messages"] = rows[-1]["messages"][:1]
        elif told["arguments"].get("task_type"):
            rows[-1] |= {"messages": rows[-1]["messages"][:1], "label": number % 2}
    evaluated = "eval_strategy" in told["arguments"]
    held = (told["held"] or HELD * bool(told["arguments"].get("streaming"))) if evaluated else 0
    parts = {"dataset": rows[held:], "val_dataset": rows[:held]}
    said = {}
    for name, part in parts.items():
        if part:
            path = folder / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in part))
            said[name] = str(path)
    return said | ({"split_dataset_ratio": "0.25"} if evaluated and not held else {})


def main() -> int:
    words = sys.argv[1:]
    draws = widened if "--wide" in words else drawn
    return drawing.main(
        "drawn_swift", __doc__, KINDS, draws, perform, [word for word in words if word != "--wide"]
    )


if __name__ == "__main__":
    sys.exit(main())
