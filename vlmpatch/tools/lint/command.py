"""The launches of a command line: what it starts itself, and what the scripts do that it names."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vlmpatch.tools.lint import configuration, program
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.shell.script import Launch, Script, found
from vlmpatch.tools.lint.unread import MISSING, UNSAID, Unread

_NO_TRAINING = re.compile(
    r"\b(?:swift (?:infer|deploy|rollout|export|eval|sample|app|web-ui|merge-lora)"
    r"|llamafactory-cli (?:export|chat|api|eval|webchat|webui)|trl (?:vllm-serve|env|chat)|vllm serve"
    r"|accelerate (?:config|env|test)|axolotl (?:inference|merge-lora|preprocess)"
    r"|-m (?:pip|vllm|venv|json)\b)\b"
)
_TRAINS = re.compile(
    r"(?<![a-z])(?:pre|fine)?_?(?:train\w*|tun(?:e|ing)|sft|grpo|dpo|kto|ppo|mpo|rlhf)(?![a-z])",
    re.IGNORECASE,
)
_OTHERWISE = re.compile(
    r"eval|infer|merge|convert|export|demo|serve|server|test|download|prepare|preprocess|generate|caption|vqa|chat",
    re.IGNORECASE,
)
_UNKNOWN = re.compile(r"\$(?:\w+|\{\w+\}|\(.*\))", re.DOTALL)
FRAMEWORKS = ("swift", "llamafactory-cli", "trl", "axolotl")
_TRAINING_FLAGS = frozenset({
    "deepspeed", "learning_rate", "per_device_train_batch_size", "num_train_epochs", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "grad_checkpoint", "gradient_accumulation_steps", "use_lora", "use_peft",
    "lora_enable", "lora_rank", "lora_r", "max_slice_nums", "finetuning_type",
    "fsdp", "zero_stage",
})  # fmt: skip


class Reading(NamedTuple):
    """The trainings that a command starts, and what of it could not be read."""

    launches: tuple[LaunchConfig, ...]
    problems: tuple[Unread, ...]


def read(command: str, where: str, folder: str = ".") -> Reading:
    """Read ``command`` without running any of it.

    Args:
        command: as it is typed, or a script's path.
        where: what findings call it.
        folder: in which it is typed.
    """
    script = Script(folder)
    script.read(command, where)
    launches = [_config(launch) for launch in script.launches]
    return Reading(tuple(filter(_trains, launches)), tuple(script.problems))


def _config(launch: Launch) -> LaunchConfig:
    made, words = LaunchConfig(launch.where), launch.words
    first = next((number for number, word in enumerate(words) if "=" not in word), 0)
    made.programs = [_short(word) for word in words[first:] if word[:1] != "-" and "=" not in word][:8]
    if made.launcher not in FRAMEWORKS:
        made.program = program.name(words)
    made.line = " ".join(words[first : first + 8])
    for name, value in _flags(words):
        made.say(name, value, launch.where)
    for before, word in itertools.pairwise(words):
        if not word.endswith((".yaml", ".yml")):
            continue
        if path := found(launch.folder, word):
            configuration.from_file(path, made)
        elif not before.startswith("--"):  # a flag's configuration is followed below
            made.problems.append(Unread(launch.where, MISSING, word))
    made.problems += [Unread(launch.where, UNSAID, word) for word in _unsaid(words)]
    configuration.follow(made, launch.folder, 0)
    if made.program:
        program.read(made.program, launch.folder, made)
    return made


def _unsaid(words: Sequence[str]) -> Iterator[str]:
    """Words behind the program that stand for more of them, which the script does not say."""
    begins = next((number for number, word in enumerate(words) if word.endswith(".py")), len(words))
    for before, word in itertools.pairwise(words[begins:]):
        if _UNKNOWN.fullmatch(word) and not before.startswith("--"):
            yield word


def _short(word: str) -> str:
    return os.path.basename(word) or word


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, word in enumerate(words):
        if not word.startswith("--") or len(word) == 2:
            if "=" in word and word.split("=")[0].isidentifier():
                name, _, value = word.partition("=")  # NPROC_PER_NODE=8, hydra's key=value
                yield name, value
            continue
        name, equals, value = word[2:].partition("=")
        if not equals:
            following = words[number + 1] if number + 1 < len(words) else "--"
            value = "true" if following.startswith("--") else following
        yield name, value


def _trains(launch: LaunchConfig) -> bool:
    """Whether this launch trains, as far as its words tell."""
    if _NO_TRAINING.search(launch.line):
        return False
    if launch.launcher in FRAMEWORKS:
        return len(launch.programs) > 1
    folder, name = os.path.split(launch.program)
    if _TRAINS.search(name):
        return True
    if _OTHERWISE.search(name):
        return False
    if _TRAINING_FLAGS & launch.options.keys() or _TRAINS.fullmatch(os.path.basename(folder)):
        return True
    return bool(name) and launch.launcher in ("torchrun", "deepspeed", "accelerate")
