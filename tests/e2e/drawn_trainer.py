"""HF Trainer with arguments drawn at random: what it logs and learns, bare and with vlmpatch.

    python -m tests.e2e.drawn_trainer tf457-ds0182 --kinds qwen2_vl,llava --count 40 --seed 0

What is right is the same Trainer under DDP that searches for unused parameters, without checkpointing and
without vlmpatch: all losses, norms, evaluations and the parameters at the end. Every training that vlmpatch
harms or leaves wrong is printed, then how many ended how; exit status 1 where it harmed one. A seed draws
the same again. ``tests.e2e.drawn`` draws trainings that call the engines themselves.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab import envs, forked, launch
from tests.lab.forked import Job
from tests.lab.launch import Finished

SCRIPT = "tests/programs/train_drawn.py"
IMPORTS = (*forked.STACK, "deepspeed", "accelerate")
LAYERS = {  # of the language model: where these alone are wrapped, the tower stays with the whole
    "qwen2_vl": "Qwen2VLDecoderLayer",
    "qwen2_5_vl": "Qwen2_5_VLDecoderLayer",
    "llava": "LlamaDecoderLayer",
    "gemma3": "Gemma3DecoderLayer",
}
KINDS = ",".join(LAYERS)
ENGINES = ("ddp", "ddp", "ddp_unused", "zero1", "zero2", "zero2", "zero3", "zero3", "zero3", "fsdp1", "fsdp2")
TUNINGS = ("full", "full", "lora", "lora", "lora_llm", "lora_saved")
CHECKPOINTING: tuple[dict[str, Any], ...] = (
    {},
    *({"gradient_checkpointing": True},) * 3,
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
)
ZERO: dict[str, tuple[Any, ...]] = {
    "overlap_comm": (True, False),
    "reduce_bucket_size": (500, 5000),
    "offload_optimizer": ({"device": "cpu"},),
}
ZERO3: dict[str, tuple[Any, ...]] = {
    "stage3_param_persistence_threshold": (100_000,),
    "stage3_prefetch_bucket_size": (0,),
    "offload_param": ({"device": "cpu"},),
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "optim": ("sgd", "sgd", "rmsprop", "adamw_torch_fused"),  # of Adagrad ZeRO makes one group of its own
    "max_grad_norm": (0.0, 0.05),
    "lr_scheduler_type": ("linear", "cosine"),
    "weight_decay": (0.1,),
    "warmup_steps": (1,),
    "label_smoothing_factor": (0.1,),
    "average_tokens_across_devices": (True, False),
    "dataloader_drop_last": (True,),
    "neftune_noise_alpha": (5,),
    "torch_empty_cache_steps": (1,),
    "skip_memory_metrics": (False,),
    "logging_nan_inf_filter": (False,),
    "restore_callback_states_from_checkpoint": (True,),
    "seed": (7,),
}
EVALUATION: dict[str, tuple[Any, ...]] = {
    "prediction_loss_only": (True,),
    "eval_on_start": (True,),
    "eval_accumulation_steps": (1,),
    "eval_steps": (2,),
}
SCENARIOS = ("", "", "", "", "frozen", "projector", "biases")
TRAINERS = ("", "", "", "loss", "step", "groups")
ACTS = (
    *(("train",),) * 5,
    *(("evaluate", "train"), ("train", "evaluate"), ("train", "predict"), ("train", "train")),
    *(("train", "resume"),) * 2,
)
ERROR = re.compile(r"[\w.]*(Error|Exception)\b|vlmpatch \[")
SIDES = ("right:", "bare: ", "with: ")
REFUSE_EVALUATION = ("zero1", "zero2", "fsdp2")  # before a training
MORE_BESIDE_IMAGES = ("llava", "gemma3")  # they return more than logits there: what ranks gather differs
CHANCE = 0.25  # that an argument is said
PART = 12  # trainings in forks of one process
PRINTED, APART = 2e-4, 2e-3  # relative; of what Adam or a norm made larger

Ended = tuple[Finished, Finished, Finished]  # where it is right, bare, and with vlmpatch


def drawn(seed: int, count: int, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """What ``count`` trainings are told."""
    chance = random.Random(seed)
    return [draw(chance, kinds) for _ in range(count)]


def draw(chance: random.Random, kinds: Sequence[str]) -> dict[str, Any]:
    """What one training is told."""
    engine = chance.choice(ENGINES)
    acts: tuple[str, ...] = chance.choice(ACTS)
    sharded = engine.startswith("fsdp")
    if (sharded and "resume" in acts) or (acts[0] == "evaluate" and engine in REFUSE_EVALUATION):
        acts = ("train",)
    arguments = {**chance.choice(CHECKPOINTING), **_some(chance, ARGUMENTS)}
    arguments |= chance.choice(({"max_steps": 4}, {"num_train_epochs": 1}, {"num_train_epochs": 2}))
    arguments["gradient_accumulation_steps"] = chance.choice((1, 1, 2, 3))
    if chance.random() < 0.4:
        arguments |= {"eval_strategy": "steps", "eval_steps": 1, **_some(chance, EVALUATION)}
    if "resume" in acts:
        arguments |= {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        arguments.pop("eval_on_start", None)  # the one that is resumed does so again
        if arguments.get("eval_strategy") and chance.random() < 0.5:
            arguments |= {"load_best_model_at_end": True, "eval_steps": 2}
    if acts[0] == "evaluate":  # which is not in the measure: noise after it is other noise
        arguments.pop("neftune_noise_alpha", None)
    if acts.count("train") > 1 and engine.startswith("zero"):
        arguments["optim"] = "sgd"  # the Trainer makes a new optimizer there, which knows nothing of before
    if engine == "fsdp1":  # what a unit does not use of its own has a zero, on which weight decay acts
        arguments |= {"optim": "sgd", "weight_decay": 0.0}
    callbacks = ["freezing"] if chance.random() < 0.1 and acts == ("train",) and not sharded else []
    if arguments.get("eval_strategy") and chance.random() < CHANCE:
        callbacks.append("evaluating")
    metrics = chance.random() < 0.3
    kind, tuning = chance.choice(kinds), chance.choice(TUNINGS)
    if engine == "ddp" and kind == "llava" and tuning == "full":
        engine = "ddp_unused"  # it does not use the end of its tower, which DDP has to be told
    if kind in MORE_BESIDE_IMAGES:
        metrics, acts = False, ("train", "evaluate") if "predict" in acts else acts
    return {
        "kind": kind,
        "engine": engine,
        "tuning": tuning,
        "scenario": chance.choice(SCENARIOS),
        "input_grads": chance.random() < 0.8,
        "trainer": chance.choice(TRAINERS),
        "metrics": metrics,
        "ignored": None,
        "callbacks": callbacks,
        "acts": acts,
        "arguments": arguments,
        "rows": [chance.random() < 0.6 for _ in range(chance.choice((12, 13, 14)))],
        "zero": _some(chance, ZERO if engine.startswith("zero") else {})
        | _some(chance, ZERO3 if engine == "zero3" else {}),
        "fsdp": {"transformer_layer_cls_to_wrap": [LAYERS[kind]]}
        if sharded and chance.random() < 0.5
        else {},
    }


def _some(chance: random.Random, known: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {name: chance.choice(values) for name, values in known.items() if chance.random() < CHANCE}


def measure(told: dict[str, Any]) -> dict[str, Any]:
    """The same where it is right: a training that is resumed ends as one that goes through."""
    arguments = {name: value for name, value in told["arguments"].items() if "checkpointing" not in name}
    said = told["acts"][told["acts"].index("train") :]  # evaluated before, ranks may train apart (F114)
    acts = ["again" if act == "resume" else act for act in said]
    plain = {"engine": "ddp_unused", "zero": {}, "fsdp": {}}
    return {**told, **plain, "acts": acts, "arguments": arguments}


def perform(
    stack: envs.Stack, part: Sequence[dict[str, Any]], models: dict[str, Path], out: Path
) -> list[Ended]:
    """How each ended: its measure, bare, and with vlmpatch."""

    def jobs(name: str, told: Sequence[dict[str, Any]], file: str) -> list[Job]:
        return [
            Job(
                (
                    *(SCRIPT, "--model", str(models[one["kind"]]), "--told", json.dumps(one)),
                    *("--output_dir", str(out / name / f"saved-{number}")),
                    *(file, str(out / f"{number}.pt")),
                )
            )
            for number, one in enumerate(told)
        ]

    def run(name: str, asked: Sequence[Job], **env: str) -> list[Finished]:
        ran = forked.run(stack, asked, out / name, imports=IMPORTS, env=env, gloo=True, waiting=True)
        return [ran[job] for job in asked]

    right = run("right", jobs("right", [measure(told) for told in part], "--keep"), VLMPATCH_DISABLE="all")
    bare = run("bare", jobs("bare", part, "--right"), VLMPATCH_DISABLE="all")
    patched = run("patched", jobs("patched", part, "--right"))
    return list(zip(right, bare, patched, strict=True))


def word(measured: Finished, bare: Finished, patched: Finished) -> str:
    """``same`` and ``fixed`` are right with vlmpatch; ``harmed`` is right without it alone."""
    if found_of(measured) is None:
        return "without a measure"
    before, now = is_right(measured, bare), is_right(measured, patched)
    if now:
        return "same" if before else "fixed"
    return "harmed" if before else "wrong"


def is_right(measured: Finished, ran: Finished) -> bool:
    right, found = found_of(measured), found_of(ran)
    if right is None or found is None or len(right["logged"]) != len(found["logged"]):
        return False
    near = (
        abs(one - other) <= PRINTED * max(abs(one), 1e-3)
        for one, other in zip(right["logged"], found["logged"], strict=True)
    )
    return all(near) and bool(found["apart"] <= APART)


def found_of(ran: Finished) -> dict[str, Any] | None:
    """What a training that ended well came to."""
    lines = [line for line in ran.output.splitlines() if line.startswith("FOUND ")]
    found: dict[str, Any] | None = json.loads(lines[-1].removeprefix("FOUND ")) if lines else None
    return found if ran.rc == 0 else None


def said(ran: Finished) -> str:
    """What it came to, or the last words of it."""
    if found := found_of(ran):
        return json.dumps(found)
    lines = [line for line in ran.output.splitlines() if ERROR.match(line)]
    return f"exit status {ran.rc}: " + " / ".join(dict.fromkeys(line[:300] for line in lines))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.drawn_trainer", description=__doc__)
    parser.add_argument("stack")
    parser.add_argument("--kinds", default=KINDS, help="models, comma-separated")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    stack, out = envs.read_stacks()[asked.stack], Path(tempfile.mkdtemp(prefix="drawn-trainer-"))
    models = launch.checkpoints(stack, kinds := asked.kinds.split(","))
    every, counts = drawn(asked.seed, asked.count, kinds), Counter[str]()
    for start in range(0, len(every), PART):
        part = every[start : start + PART]
        for told, ran in zip(part, perform(stack, part, models, out / str(start)), strict=True):
            counts[ended := word(*ran)] += 1
            if ended not in ("same", "fixed"):
                print(f"{ended}: {json.dumps(told)}")
                print(*(f"  {name} {said(one)}" for name, one in zip(SIDES, ran, strict=True)), sep="\n")
        print(f"{start + len(part)} of {len(every)}: {dict(counts)}", flush=True)
    return int(counts["harmed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
