"""What programs that draw trainings of a framework at random share: words, how they run, and the verdict.

A training is told by one JSON object and held against the same where it is right. Its program ends with a
line ``FOUND`` and what came of it (``tests.lab.found``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.lab import cells, envs, forked, launch
from tests.lab.forked import Job
from tests.lab.launch import Finished
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read

Told = dict[str, Any]
Words = dict[str, tuple[Any, ...]]  # what may be said, and with which values
Ended = tuple[Finished, Finished, Finished]  # where it is right, bare, and with vlmpatch

CHECKPOINTING: tuple[dict[str, Any], ...] = (
    {},
    *({"gradient_checkpointing": True},) * 3,
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    *(
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": said}
        for said in ({}, {"preserve_rng_state": False}, {"use_reentrant": False, "determinism_check": "none"})
    ),
)
ZERO: Words = {
    "overlap_comm": (True, False),
    "reduce_bucket_size": (500, 5000),
    "offload_optimizer": ({"device": "cpu"},),
}
ZERO3: Words = {
    "stage3_param_persistence_threshold": (100_000,),
    "stage3_prefetch_bucket_size": (0,),
    "offload_param": ({"device": "cpu"},),
}
ARGUMENTS: Words = {  # of HF Trainer, whose every framework here has them
    "optim": ("sgd", "sgd", "rmsprop", "adamw_torch_fused"),  # of Adagrad ZeRO makes one group of its own
    "max_grad_norm": (0.0, 0.05),
    "lr_scheduler_type": ("linear", "cosine"),
    "weight_decay": (0.1,),
    "warmup_steps": (1,),
    "average_tokens_across_devices": (True, False),
    "dataloader_drop_last": (True,),
    "neftune_noise_alpha": (5,),
    "torch_empty_cache_steps": (1,),
    "skip_memory_metrics": (False,),
    "logging_nan_inf_filter": (False,),
    "restore_callback_states_from_checkpoint": (True,),
    "seed": (7,),
}
ERROR = re.compile(r"(\[rank\d\]: )?[\w.]*(Error|Exception)\b|vlmpatch \[")
SIDES = ("right:", "bare: ", "with: ")
CHANCE = 0.25  # that an argument is said
PART = 12  # trainings in forks of one process
# Some Trainers divide what they accumulate wrongly, or lose the best checkpoint, under DDP too. What is right
# has what ends that; each is proven by itself in cases/transformers.toml.
WRONG_IN_THE_MEASURE = {"F15", "F110", *cells.WRONG_FORWARDS}
PRINTED, APART = 2e-4, 2e-3  # relative; of what Adam or a norm made larger


def some(chance: random.Random, known: Words, often: float = CHANCE) -> dict[str, Any]:
    return {name: chance.choice(values) for name, values in known.items() if chance.random() < often}


def zero(chance: random.Random, engine: str) -> dict[str, Any]:
    """Settings of DeepSpeed's, where the engine is a stage of ZeRO."""
    return some(chance, ZERO if engine.startswith("zero") else {}) | some(
        chance, ZERO3 if engine == "zero3" else {}
    )


def perform(
    stack: envs.Stack, jobs: Callable[[str], Sequence[Sequence[Job]]], out: Path, imports: Sequence[str]
) -> list[Ended]:
    """How each ended. ``jobs`` is told ``right``, ``bare`` or ``patched``: a training is a job or several.

    What has no measure is not run otherwise.
    """

    def run(name: str, numbers: Sequence[int], **env: str) -> list[Finished]:
        known = jobs(name)
        asked = [known[number] for number in numbers]
        every = list(dict.fromkeys(job for each in asked for job in each))
        env |= {"USE_HF": "1"}
        ran = forked.run(stack, every, out / name, imports=imports, env=env, gloo=True, waiting=True)
        return [joined([ran[job] for job in each]) for each in asked]

    entries = read(default_path()).entries.values()
    others = [entry.id for entry in entries if not WRONG_IN_THE_MEASURE & {*entry.failures}]
    measured = run("right", range(len(jobs("right"))), VLMPATCH_DISABLE=",".join(others))
    numbers = [number for number, ran in enumerate(measured) if found_of(ran)]
    bare, patched = run("bare", numbers, VLMPATCH_DISABLE="all"), run("patched", numbers)
    held = dict(zip(numbers, zip(bare, patched, strict=True), strict=True))
    return [(ran, *held.get(number, (ran, ran))) for number, ran in enumerate(measured)]


def joined(acts: Sequence[Finished]) -> Finished:
    """Several launches as one; those after the first that failed are left out."""
    ended = next((n for n, act in enumerate(acts) if act.rc != 0), len(acts) - 1)
    output = "\n".join(act.output for act in acts[: ended + 1])
    return dataclasses.replace(acts[ended], output=output)


def acted(told: Told, job: Callable[[str], Job]) -> list[Job]:
    """The jobs of a training, an act each; one that is there twice, as where it goes through, is run once."""
    made = {act: job(act) for act in dict.fromkeys(told["acts"])}
    return [made[act] for act in told["acts"]]


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
    """What a training that ended well came to, all its launches together."""
    lines = [line.removeprefix("FOUND ") for line in ran.output.splitlines() if line.startswith("FOUND ")]
    if ran.rc != 0 or not lines:
        return None
    found = [json.loads(line) for line in lines]
    worst: dict[str, Any] = max(found, key=lambda each: float(each["apart"]))
    return {**worst, "logged": [value for each in found for value in each["logged"]]}


def said(ran: Finished) -> str:
    """What it came to, or the last words of it."""
    if found := found_of(ran):
        return json.dumps(found)
    lines = [line for line in ran.output.splitlines() if ERROR.match(line)]
    return f"exit status {ran.rc}: " + " / ".join(dict.fromkeys(line[:300] for line in lines))


def main(
    name: str,
    about: str | None,
    kinds: str,
    drawn: Callable[[envs.Stack, int, int, Sequence[str]], list[Told]],
    perform: Callable[[envs.Stack, Sequence[Told], dict[str, Path], Path], list[Ended]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Draw, run and print what is harmed or wrong.

    Args:
        name: of the program.
        about: what it says of itself.
        kinds: the models, where none is named.
        drawn: trainings of a stack by seed, count and kinds.
        perform: how some of them ended; it is told where the models lie, and a folder of its own.
        arguments: of the command line, where the program has taken some itself.

    Returns:
        Exit status: 1 where vlmpatch harmed one.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.e2e.{name}", description=about)
    parser.add_argument("stack")
    parser.add_argument("--kinds", default=kinds, help="models, comma-separated")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    stack, out = envs.read_stacks()[asked.stack], Path(tempfile.mkdtemp(prefix=f"{name}-"))
    models = launch.checkpoints(stack, named := asked.kinds.split(","))
    every, counts = drawn(stack, asked.seed, asked.count, named), Counter[str]()
    for start in range(0, len(every), PART):
        part = every[start : start + PART]
        for told, ran in zip(part, perform(stack, part, models, out / str(start)), strict=True):
            counts[ended := word(*ran)] += 1
            if ended not in ("same", "fixed"):
                print(f"{ended}: {json.dumps(told)}")
                shown = SIDES if found_of(ran[0]) else SIDES[:1]
                print(*(f"  {side} {said(ran[n])}" for n, side in enumerate(shown)), sep="\n")
        print(f"{start + len(part)} of {len(every)}: {dict(counts)}", flush=True)
    return int(counts["harmed"] > 0)
