"""What a launch asks for, whichever framework's words it is written in."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vlmpatch.tools import files

DEPTH = 3  # configurations that name configurations
UP = 6  # folders between a script and the one it is started in
HEAVIEST = 100_000  # values of a YAML file
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_STAGE = re.compile(r"zero[_-]?(?:stage[_-]?)?([0-3])", re.IGNORECASE)


class Option(NamedTuple):
    """A value, as it was written, and where."""

    value: str
    where: str
    name: str = ""

    @property
    def on(self) -> bool:
        """Whether it switches something on."""
        return self.value.strip().lower() in _TRUE

    @property
    def off(self) -> bool:
        """Whether it switches something off."""
        return self.value.strip().lower() in _FALSE

    @property
    def number(self) -> int | None:
        """The value as a whole number."""
        try:
            return int(float(self.value))
        except (ValueError, OverflowError):
            return None


class LaunchConfig:
    """Everything a launch says, by name; the first to say something is heard (the command line)."""

    def __init__(self) -> None:
        self.options: dict[str, Option] = {}
        self.programs: list[str] = []
        self.problems: list[str] = []

    def say(self, name: str, value: object, where: str) -> None:
        """Note that ``where`` sets ``name``."""
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, (dict, list)):
            value = json.dumps(value)
        key = name.lstrip("-").replace("-", "_")
        self.options.setdefault(key, Option("" if value is None else str(value), where, key))

    def get(self, *names: str) -> Option | None:
        """The first of ``names`` that is set."""
        return next((self.options[name] for name in names if name in self.options), None)

    @property
    def stage(self) -> int:
        """The ZeRO stage; 0 without DeepSpeed."""
        given = self.get("zero_optimization.stage", "deepspeed_config.zero_stage", "zero_stage")
        if given:
            return given.number or 0
        named = self.get("deepspeed", "deepspeed_config_file")
        match = _STAGE.search(os.path.basename(named.value)) if named else None
        return int(match[1]) if match else 0

    @property
    def offloaded(self) -> bool:
        """Whether DeepSpeed keeps the optimizer on the CPU."""
        device = "offload_optimizer_device"
        given = self.get("zero_optimization.offload_optimizer.device", f"deepspeed_config.{device}", device)
        if given:
            return given.value.lower() not in ("", "none")
        named = self.get("deepspeed", "deepspeed_config_file")
        return named is not None and "offload" in os.path.basename(named.value)

    @property
    def lora(self) -> Option | None:
        """What asks for adapters."""
        for name, meant in _LORA.items():
            given = self.options.get(name)
            if given and (given.on if meant is None else given.value.lower() in meant):
                return given
        return self.get("lora_rank", "lora_r", "lora_target", "lora_target_modules")

    @property
    def checkpointing(self) -> Option | None:
        """What says whether to checkpoint."""
        return self.get("gradient_checkpointing")

    @property
    def reentrant(self) -> Option | None:
        """What says use_reentrant=True in so many words."""
        kwargs = self.get("gradient_checkpointing_kwargs", "gradient_checkpointing_kwargs.use_reentrant")
        given = self.get("use_reentrant", "use_reentrant_gc", "gradient_checkpointing_kwargs.use_reentrant")
        if given and given.on:
            return given
        words = re.sub(r"[\"'\s]", "", kwargs.value).lower() if kwargs else ""
        return kwargs if "use_reentrant:true" in words or "use_reentrant=true" in words else None

    @property
    def nonreentrant(self) -> bool:
        """Whether use_reentrant=False is said in so many words."""
        given = self.get("use_reentrant", "use_reentrant_gc", "gradient_checkpointing_kwargs.use_reentrant")
        kwargs = self.get("gradient_checkpointing_kwargs")
        words = re.sub(r"[\"'\s]", "", kwargs.value).lower() if kwargs else ""
        return bool(given and given.off) or re.search(r"use_reentrant[:=]false", words) is not None

    @property
    def swift(self) -> bool:
        """Whether ms-swift is launched, which decides about use_reentrant for its users."""
        return "swift" in self.programs or self.get("tuner_type", "train_type", "sft_type") is not None

    @property
    def llamafactory(self) -> bool:
        """Whether LLaMA-Factory is launched."""
        return "llamafactory-cli" in self.programs or "finetuning_type" in self.options

    @property
    def minicpmv(self) -> bool:
        """Whether MiniCPM-V's own script is launched."""
        return self.get("tune_vision") is not None and self.get("llm_type", "tune_llm") is not None

    @property
    def fsdp(self) -> bool:
        """Whether FSDP shards the model, which may checkpoint by itself."""
        given = self.get("config_file", "fsdp", "distributed_type", "fsdp_config")
        named = (
            given is not None
            and given.name in ("fsdp", "fsdp_config")
            and given.value not in ("", "[]", "{}")
        )
        return named or (given is not None and "fsdp" in given.value.lower())

    @property
    def accumulation(self) -> int:
        """Micro-batches a step."""
        given = self.get("gradient_accumulation_steps")
        return (given.number or 1) if given else 1


_LORA: Mapping[str, tuple[str, ...] | None] = {
    "use_lora": None,
    "use_peft": None,
    "lora_enable": None,
    "train_type": ("lora", "qlora", "longlora", "adalora"),
    "tuner_type": ("lora", "qlora", "longlora", "adalora"),
    "sft_type": ("lora", "qlora"),
    "finetuning_type": ("lora", "qlora"),
    "adapter": ("lora", "qlora"),
}


_LAUNCHES = re.compile(r"\b(torchrun|deepspeed|accelerate|swift|llamafactory-cli|trl|axolotl|python3?)\b")
_NO_TRAINING = re.compile(
    r"\b(?:swift (?:infer|deploy|rollout|export|eval|sample|app|web-ui|merge-lora)"
    r"|llamafactory-cli (?:export|chat|api|eval|webchat|webui)|trl (?:vllm-serve|env|chat)|vllm serve"
    r"|pip3? install)\b"
)


def from_command(line: str, where: str, launch: LaunchConfig, folder: str = ".") -> None:
    """Read a launch line: a shell script, or a command with its flags."""
    words = _split(line, launch)
    if words and words[0] in ("bash", "sh", "source", ".") and len(words) > 1:
        words = words[1:]
    if words and words[0].endswith(".sh"):
        from_script(os.path.join(folder, words[0]), launch)
        return
    launch.programs += [
        os.path.basename(word) for word in words if not word.startswith("-") and "=" not in word
    ][:6]
    for name, value in _flags(words):
        launch.say(name, value, where)
    for word in words:
        if word.endswith((".yaml", ".yml")) and os.path.isfile(os.path.join(folder, word)):
            from_file(os.path.join(folder, word), launch)
    _follow(launch, folder, 0)


def _split(line: str, launch: LaunchConfig) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        launch.problems.append(f"{line[:60]}: {error}")
        return line.split()


def _flags(words: list[str]) -> Iterator[tuple[str, str]]:
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


def from_script(path: str, launch: LaunchConfig) -> None:
    """Read a shell script: its variables, then the line that launches."""
    if _read(launch, path):
        return
    try:
        text = files.read(path, 1 << 20, cut=True)
    except OSError as error:
        launch.problems.append(f"{path}: {error.strerror}")
        return
    variables: dict[str, str] = {}
    for number, line in _joined(text):
        filled = _filled(line, variables)
        if match := re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(\S*|'[^']*'|\"[^\"]*\")\s*(?:#.*)?$", filled):
            variables[match[1]] = match[2].strip("\"'")
        elif _LAUNCHES.search(filled) and not _NO_TRAINING.search(filled):
            from_command(filled, f"{os.path.basename(path)}:{number}", launch, os.path.dirname(path) or ".")


def _joined(text: str) -> Iterator[tuple[int, str]]:
    held, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        first = first if held else number
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1] + " "
        else:
            yield first, held + line
            held = ""
    if held:
        yield first, held


def _filled(line: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        default = match[2] if match[2] is not None else match[0]
        return variables.get(match[1] or match[3], default)

    filled = re.sub(r"\$\{(\w+)(?::-([^}]{0,200}))?\}|\$(\w+)", value, line)
    filled = re.sub(r"\$()()(\w+)", value, filled)  # a default may be another's value
    return _SUM.sub(lambda match: _computed(match, variables), filled)


_SUM = re.compile(r"\$\(\(((?:[^()]|\([^()]{0,80}\)){1,200}?)\)\)")


def _computed(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """What the shell makes of a sum of whole numbers; what it cannot be is left as it is written."""
    words = [variables.get(word, word) for word in re.findall(r"\w+|[*+/()-]", match[1])]

    def atom() -> int:
        word = words.pop(0)
        if word != "(":
            return int(word)
        inner = total()
        words.pop(0)
        return inner

    def product() -> int:
        value = atom()
        while words and words[0] in "*/":
            value = value * atom() if words.pop(0) == "*" else value // atom()
        return value

    def total() -> int:
        value = product()
        while words and words[0] in "+-":
            value = value + product() if words.pop(0) == "+" else value - product()
        return value

    try:
        result = total()
    except (ValueError, IndexError, ZeroDivisionError, RecursionError):
        return match[0]
    return match[0] if words else str(result)


def from_file(path: str, launch: LaunchConfig, depth: int = 0) -> None:
    """Read a DeepSpeed, accelerate, TRL, axolotl or LLaMA-Factory configuration."""
    data = _parsed(path, launch)
    if data is None:
        return
    _take(data, os.path.basename(path), launch, "")
    _follow(launch, os.path.dirname(path) or ".", depth + 1)


def _take(data: Mapping[str, Any], where: str, launch: LaunchConfig, above: str) -> None:
    for name, value in data.items():
        launch.say(f"{above}{name}", value, where)
        if isinstance(value, Mapping):
            _take(value, where, launch, f"{above}{name}.")


def _follow(launch: LaunchConfig, folder: str, depth: int) -> None:
    for name in (
        "deepspeed",
        "deepspeed_config.deepspeed_config_file",
        "config_file",
        "config",
        "accelerate_config",
    ):
        given = launch.options.get(name)
        path = os.path.join(folder, given.value) if given else ""
        if (
            depth < DEPTH
            and given
            and given.value.endswith((".json", ".yaml", ".yml"))
            and not _read(launch, path)
        ):
            if found := _found(folder, given.value):
                from_file(found, launch, depth)
            else:
                launch.problems.append(f"{given.where}: --{name} {given.value} is not there")


def _found(folder: str, name: str) -> str | None:
    """Where a file lies that a launch names: beside it, here, or above it, where such scripts are started."""
    above = [folder, "."]
    for _ in range(UP):
        above.append(os.path.join(above[-1] if len(above) > 2 else folder, os.pardir))
    return next((path for path in (os.path.join(at, name) for at in above) if os.path.isfile(path)), None)


def _read(launch: LaunchConfig, path: str) -> bool:
    """Whether ``path`` has been read before; from now on it has."""
    mark = f"\0{os.path.abspath(path)}"
    known = mark in launch.options
    launch.options.setdefault(mark, Option("", ""))
    return known


def _weight(node: Any, known: dict[int, int]) -> int:
    """How many values a YAML document has once each alias is what it stands for."""
    if id(node) not in known:
        known[id(node)] = HEAVIEST + 1  # where it holds itself
        parts = node.value if isinstance(getattr(node, "value", None), list) else []
        inner = [each for part in parts for each in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = min(HEAVIEST + 1, 1 + sum(_weight(each, known) for each in inner))
    return known[id(node)]


def _parsed(path: str, launch: LaunchConfig) -> Mapping[str, Any] | None:
    try:
        text = files.read(path, 4 << 20)
        if path.endswith(".json"):
            data = json.loads(text)
        else:
            import yaml

            if _weight(yaml.compose(text, Loader=yaml.SafeLoader), {}) > HEAVIEST:
                raise ValueError("its aliases make it too large")
            data = yaml.safe_load(text)
    except ImportError:
        launch.problems.append(f"{path}: cannot be read without PyYAML (pip install pyyaml)")
        return None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error) or "cannot be read"
        launch.problems.append(f"{path}: {why.splitlines()[0]}")
        return None
    except Exception as error:  # PyYAML's errors have a root of their own, and it is imported only here
        launch.problems.append(f"{path}: {str(error).splitlines()[0]}")
        return None
    if not isinstance(data, Mapping):
        launch.problems.append(f"{path}: holds no settings")
        return None
    return data
