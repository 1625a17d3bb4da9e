"""TRL's trainers with arguments drawn at random: what they log and learn, bare and with vlmpatch.

    python -m tests.e2e.drawn_trl trl024 --kinds qwen2_vl,llava_files --count 40 --seed 0

What is right is the same trainer under DDP that searches for unused parameters, without checkpointing and
without vlmpatch, but for F15 and F110: all losses, norms, evaluations and the parameters at the end. GRPO
and RLOO sample from the model itself, by chance that is the same on every engine, so that another weight is
another answer. Every training that vlmpatch harms or leaves wrong is printed, then how many ended how; exit
status 1 where it harmed one. A seed draws the same again. Rows without an image are drawn where a trainer
takes them beside rows with one: KTO, ORPO and CPO know no images, DPO of TRL 0.24 wants one in each row.
``tests.e2e.test_trl_options`` takes TRL's options one by one.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.e2e import drawing
from tests.e2e.drawing import ARGUMENTS, CHECKPOINTING, Ended, Told, some
from tests.lab import envs, forked
from tests.lab.forked import Job

SCRIPT = "tests/programs/train_drawn_trl.py"
IMPORTS = (
    *(*forked.STACK, "deepspeed", "accelerate", "datasets"),
    *(f"trl.trainer.{each}_trainer" for each in ("sft", "dpo", "grpo", "kto")),
)
KINDS = "qwen2_vl,qwen2_5_vl,llava_files"
NOT_ALL_USED = ("llava_files",)  # the end of its tower, which DDP has to be told
ENGINES = ("ddp", "ddp", "ddp_unused", "zero1", "zero2", "zero2", "zero3", "zero3", "zero3", "fsdp1", "fsdp2")
TRAINERS = (*("sft",) * 5, *("dpo",) * 3, *("grpo",) * 4, *("kto", "kto", "rloo", "orpo", "cpo"))
ANSWERING = ("grpo", "rloo")  # they train on what the model answers
NO_IMAGES = ("kto", "orpo", "cpo")
REFERENCE = ("dpo", "kto")  # the script may hand over a model to stay near
ADAPTERS: tuple[dict[str, Any] | None, ...] = (
    *(None,) * 4,
    *({},) * 3,
    {"target_modules": ["q_proj", "v_proj"]},
    {"modules_to_save": ["lm_head"]},
    {"modules_to_save": ["embed_tokens", "lm_head"]},
    {"use_dora": True},
    {"bias": "all"},
)
SCENARIOS = ("", "", "", "frozen", "projector")
IMAGES = (0, 0, 1, 1, 1, 2)  # of a row
NEAR: drawing.Words = {"beta": (0.3,), "label_smoothing": (0.1,), "disable_dropout": (False,)}
PRECOMPUTED: drawing.Words = {"precompute_ref_log_probs": (True,)}
FOLLOWED: drawing.Words = {"sync_ref_model": (True,)}
WORDS: dict[str, drawing.Words] = {
    "sft": {"completion_only_loss": (True, False), "loss_type": ("dft",), "pad_to_multiple_of": (8,)},
    "dpo": NEAR
    | PRECOMPUTED
    | FOLLOWED
    | {
        "loss_type": ("hinge", "ipo", "robust", "apo_zero", ["sigmoid", "sft"]),
        "use_weighting": (True,),
        "rpo_alpha": (1.0,),
        "ld_alpha": (0.5,),
        "f_divergence_type": ("js_divergence",),
        "use_logits_to_keep": (True,),
    },
    "kto": {"beta": (0.3,), "loss_type": ("apo_zero_unpaired",), "desirable_weight": (1.3,)} | PRECOMPUTED,
    "grpo": FOLLOWED
    | {
        "beta": (0.04, 0.04, 0.0),
        "num_iterations": (2,),
        "steps_per_generation": (2,),
        "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo"),
        "importance_sampling_level": ("sequence",),
        "scale_rewards": ("batch", "none"),
        "epsilon_high": (0.28,),
        "top_entropy_quantile": (0.5,),
        "temperature": (0.7,),
    },
    "rloo": FOLLOWED
    | {
        "num_iterations": (2,),
        "beta": (0.0, 0.1),
        "normalize_advantages": (True,),
        "reward_clip_range": ([0, 1],),
    },
    "orpo": {"beta": (0.3,)},
    "cpo": {"beta": (0.3,), "loss_type": ("hinge", "ipo", "simpo"), "cpo_alpha": (0.5,)},
}
PACKING: drawing.Words = {  # of texts, beside no processor
    "packing": (True,),
    "packing_strategy": ("wrapped", "bfd"),
    "padding_free": (True,),
    "eval_packing": (False,),
}
EVALUATION: drawing.Words = {
    "prediction_loss_only": (True,),
    "eval_on_start": (True,),
    "eval_accumulation_steps": (1,),
}
SAVED = "checkpoint-2"


def drawn(stack: envs.Stack, seed: int, count: int, kinds: Sequence[str]) -> list[Told]:
    """What ``count`` trainings are told."""
    chance = random.Random(seed)
    return [draw(chance, stack.name != "swift460", kinds) for _ in range(count)]


def draw(chance: random.Random, old: bool, kinds: Sequence[str]) -> Told:
    """What one training is told; an ``old`` TRL's DPO takes LLaVA alone, and no row without an image."""
    engine, kind, trainer = chance.choice(ENGINES), chance.choice(kinds), chance.choice(TRAINERS)
    adapter = chance.choice(ADAPTERS)
    rows = _rows(chance, trainer, kind, old)
    if trainer == "dpo" and old and rows == "images":
        kind = "llava_files"
    copied = trainer in REFERENCE and adapter is None  # the model that it stays near
    if copied and (rows == "text" or trainer == "kto") and engine == "zero3":
        engine = "zero2"  # TRL refuses to copy one under ZeRO-3
    form = chance.choice(("prompt", "messages"))
    arguments = {
        "gradient_accumulation_steps": chance.choice((1, 1, 2, 3)),
        **chance.choice(({"max_steps": 4}, {"max_steps": 4}, {"num_train_epochs": 1, "max_steps": -1})),
        **chance.choice(CHECKPOINTING),
        **some(chance, ARGUMENTS),
        **some(chance, WORDS[trainer]),
        **_batches(chance, trainer, rows),
    }
    for name in _refused(trainer, engine, rows, form, adapter, arguments):
        arguments.pop(name, None)
    if engine == "fsdp1":  # what a unit does not use of its own has a zero, on which weight decay acts
        arguments |= {"optim": "sgd", "weight_decay": 0.0}
    if engine == "ddp" and kind in NOT_ALL_USED and adapter is None:
        engine = "ddp_unused"
    evaluates = chance.random() < 0.4
    if evaluates:
        arguments |= {"eval_strategy": "steps", "eval_steps": 1, **some(chance, EVALUATION)}
    acts: tuple[str, ...] = ("train",)
    if not engine.startswith("fsdp") and chance.random() < 0.2:
        acts = ("train", "resume")
        arguments |= {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        arguments.pop("eval_on_start", None)  # the one that is resumed does so again
        arguments.pop("precompute_ref_log_probs", None)  # by what is there when it begins
    scenario = chance.choice(SCENARIOS) if adapter is None else ""
    if scenario == "projector" and rows != "images":
        scenario = ""  # which a text does not use
    return {
        "trainer": trainer,
        "kind": kind,
        "engine": engine,
        "acts": acts,
        "arguments": arguments,
        "made": {
            "rows": rows,
            "adapter": adapter,
            "wrapped": adapter is not None and chance.random() < 0.3,
            "scenario": scenario,
            "reference": copied and rows != "text" and (engine == "zero3" or chance.random() < 0.4),
            "form": form,
            "held": 4 if evaluates else 0,
        },
        "rows": _images(chance, rows, 1 if kind == "llava_files" else 2),
        "zero": drawing.zero(chance, engine),
        "fsdp": {},
    }


def _rows(chance: random.Random, trainer: str, kind: str, old: bool) -> str:
    """Which have images: all, some or none, whose tokenizer has no processor around it."""
    if trainer in NO_IMAGES:
        return "text"
    if trainer == "dpo" and old:
        return chance.choice(("images", "images", "text"))
    if trainer in ANSWERING:  # which cut what LLaVA is shown into as many parts as there are rows
        return chance.choice(
            ("images", "text") if kind == "llava_files" else ("mixed", "images", "images", "text")
        )
    return chance.choice(("mixed", "mixed", "images", "text"))


def _batches(chance: random.Random, trainer: str, rows: str) -> dict[str, Any]:
    """How many at a time, and how texts are put together."""
    size = {"per_device_train_batch_size": 2 if trainer in ("kto", *ANSWERING) else chance.choice((1, 1, 2))}
    if trainer in ANSWERING:
        size["per_device_eval_batch_size"] = 2
    if rows != "text":
        return size
    if trainer == "sft":
        return {**size, "max_length": chance.choice((24, 64)), **some(chance, PACKING)}
    return {**size, **({"padding_free": True} if trainer == "dpo" and chance.random() < 0.5 else {})}


def _refused(
    trainer: str, engine: str, rows: str, form: str, adapter: Any, arguments: dict[str, Any]
) -> Iterator[str]:
    """What TRL refuses beside the rest."""
    if rows != "text" and form == "prompt":
        yield "pad_to_multiple_of"
    if adapter is not None or arguments.get("beta", 0.0 if trainer == "grpo" else 1.0) == 0.0:
        yield "sync_ref_model"  # there is none
    if engine == "zero3" or arguments.get("sync_ref_model"):
        yield "precompute_ref_log_probs"


def _images(chance: random.Random, rows: str, most: int) -> list[int]:
    """How many each row has."""
    known = {"text": (0,), "images": (1, 1, 2), "mixed": IMAGES}[rows]
    return [min(chance.choice(known), most) for _ in range(chance.choice((12, 13, 14)))]


def measure(told: Told) -> Told:
    """The same where it is right: a training that is resumed ends as one that goes through."""
    arguments = {name: value for name, value in told["arguments"].items() if "checkpointing" not in name}
    plain = {"engine": "ddp_unused", "zero": {}, "fsdp": {}, "acts": ["train"] * len(told["acts"])}
    return {**told, **plain, "arguments": {**arguments, "gradient_checkpointing": False}}


def perform(stack: envs.Stack, part: Sequence[Told], models: dict[str, Path], out: Path) -> list[Ended]:
    """How each ended: its measure, bare, and with vlmpatch."""

    def jobs(name: str) -> list[list[Job]]:
        every = []
        for number, told in enumerate(map(measure, part) if name == "right" else part):
            keeps = ("--keep" if name == "right" else "--right", str(out / f"{number}.pt"))
            where: dict[str, Any] = {
                "model": models[told["kind"]],
                "place": out / name / f"saved-{number}",
                "keeps": keeps,
            }
            every.append(drawing.acted(told, functools.partial(job, told, **where)))
        return every

    return drawing.perform(stack, jobs, out, IMPORTS)


def job(told: Told, act: str, model: Path, place: Path, keeps: tuple[str, str]) -> Job:
    # What a checkpoint has is not what is there before it is loaded.
    begins, resumed = (0, None) if act == "train" else (1, str(place / SAVED))
    said = json.dumps({**told, "begins": begins, "resumed": resumed})
    places = ("--model", str(model), "--output_dir", str(place))
    return Job((SCRIPT, *places, "--told", said, *keeps), limit=45.0)


def main() -> int:
    return drawing.main("drawn_trl", __doc__, KINDS, drawn, perform)


if __name__ == "__main__":
    sys.exit(main())
