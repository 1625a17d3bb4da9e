"""What a launch asks for, whichever framework's words it is written in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from vlmpatch.tools.lint.overruled import Overruled
from vlmpatch.tools.lint.sliced import Sliced
from vlmpatch.tools.lint.trainers import Outdated
from vlmpatch.tools.lint.unfrozen import Refrozen
from vlmpatch.tools.lint.unread import Unread

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
    """Everything a launch says, by name; the first to say something is heard (the command line).

    Args:
        where: it stands.
    """

    def __init__(self, where: str = "") -> None:
        self.where = where
        self.line = ""  # its first words
        self.program = ""  # the Python file that is started, where no framework brings its own
        self.options: dict[str, Option] = {}
        self.programs: list[str] = []
        self.problems: list[Unread] = []
        self.outdated: list[Outdated] = []  # what its own Trainer does not take
        self.refrozen: list[Refrozen] = []  # what get_peft_model freezes again
        self.overruled: list[Overruled] = []  # what a choice for the whole model decides anew
        self.sliced: Sliced | None = None  # its own sequence parallelism, whose loss nothing divides
        self.generates: bool | None = None  # whether its own Trainer calls generate(); None: not known

    def say(self, name: str, value: object, where: str) -> None:
        """Note that ``where`` sets ``name``."""
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, (dict, list)):
            value = json.dumps(value)
        key = name.lstrip("-").replace("-", "_")
        self.options.setdefault(key, Option("" if value is None else str(value), where, key))

    def overrule(self, name: str, value: bool, where: str) -> None:
        """Note that ``where`` sets ``name``, whatever was said before."""
        self.options[name] = Option(str(value).lower(), where, name)

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
        """What asks for adapters; a framework may by itself."""
        switches = [self.options[name] for name in _LORA_SWITCHES if name in self.options]
        kinds = [self.options[name] for name in _LORA_KINDS if name in self.options]
        wanted = [given for given in switches if given.on or (given.number or 0) > 0]
        wanted += [given for given in kinds if given.value.lower() in _LORA_KINDS[given.name]]
        if wanted:
            return wanted[0]
        if kinds or any(given.off or given.number == 0 for given in switches):
            return None
        said = self.get("lora_rank", "lora_r", "lora_target", "lora_target_modules")
        by_default = self.launcher in _LORA_BY_DEFAULT
        return said or (Option("lora", self.where, "default tuner") if by_default else None)

    @property
    def checkpointing(self) -> Option | None:
        """What says whether to checkpoint."""
        return self.get("gradient_checkpointing", "grad_checkpoint", "use_gradient_checkpointing")

    @property
    def checkpoints(self) -> bool:
        """Whether this checkpoints, as far as the launch says or its framework does so by itself."""
        given, switched_off = self.checkpointing, self.get("disable_gradient_checkpointing")
        if given:
            return given.on
        return (self.swift or self.llamafactory) and not (switched_off and switched_off.on)

    @property
    def vision_frozen(self) -> bool:
        """Whether the vision tower is neither trained nor given adapters, as far as the launch says."""
        if any(given.on or (given.number or 0) > 0 for given in self._given(_VISION_LORA)):
            return False
        freezes, tunes, parts = self._given(_FREEZES), self._given(_TUNES), self.get(*_PARTS)
        if any(given.off for given in freezes) or any(given.on for given in tunes):
            return False
        if parts:  # TinyLLaVA's kind of tuning, LLaVA-NeXT's list of parts
            return parts.value.lower() == "frozen" or "tower" not in f"{parts.name} {parts.value}"
        said = any(given.on for given in freezes) or any(given.off for given in tunes)
        return said or self.swift or self.llamafactory or "mm_vision_select_layer" in self.options

    @property
    def vision_lora(self) -> bool:
        """Whether the vision tower is given adapters; it is where the launch does not say."""
        if self.lora is None:
            return False
        if said := self._given(_VISION_LORA):
            return any(given.on or (given.number or 0) > 0 for given in said)
        if self.vision_frozen or self.swift or self.llamafactory:
            return not self.vision_frozen
        whole = any(given.off for given in self._given(_FREEZES)) or any(
            given.on for given in self._given(_TUNES)
        )
        return not whole  # trained as it is, beside the adapters of the language model

    @property
    def frozen_in_graph(self) -> Option | None:
        """What keeps parameters frozen that gradients pass through: adapters, or a frozen language model."""
        if self.lora:
            return self.lora
        frozen = [given for given in self._given(_LLM_FREEZES) if given.on]
        return next(iter([*frozen, *(given for given in self._given(_LLM_TUNES) if given.off)]), None)

    def _given(self, names: tuple[str, ...]) -> list[Option]:
        return [self.options[name] for name in names if name in self.options]

    @property
    def reentrant(self) -> Option | None:
        """What says use_reentrant=True outright."""
        kwargs = self.get("gradient_checkpointing_kwargs", "gradient_checkpointing_kwargs.use_reentrant")
        given = self.get("use_reentrant", "use_reentrant_gc", "gradient_checkpointing_kwargs.use_reentrant")
        if given and given.on:
            return given
        words = re.sub(r"[\"'\s]", "", kwargs.value).lower() if kwargs else ""
        return kwargs if "use_reentrant:true" in words or "use_reentrant=true" in words else None

    @property
    def nonreentrant(self) -> bool:
        """Whether use_reentrant=False is said outright."""
        given = self.get("use_reentrant", "use_reentrant_gc", "gradient_checkpointing_kwargs.use_reentrant")
        kwargs = self.get("gradient_checkpointing_kwargs")
        words = re.sub(r"[\"'\s]", "", kwargs.value).lower() if kwargs else ""
        said = bool(given and given.off) or re.search(r"use_reentrant[:=]false", words) is not None
        return said and self.reentrant is None

    @property
    def unchecked(self) -> Option | None:
        """What says determinism_check="none"."""
        kwargs = self.get("gradient_checkpointing_kwargs")
        given = self.get("determinism_check", "gradient_checkpointing_kwargs.determinism_check")
        if given:
            return given if given.value.lower() == "none" else None
        words = re.sub(r"[\"'\s]", "", kwargs.value).lower() if kwargs else ""
        return kwargs if re.search(r"determinism_check[:=]none", words) else None

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
        asked, kind, configured = self.get("fsdp"), self.get("distributed_type"), self.get("fsdp_config")
        if asked and asked.value not in ("", "[]"):
            return True
        if kind:
            return "fsdp" in kind.value.lower()
        if configured and configured.value not in ("", "{}"):
            return True
        named = self.get("config_file")
        return named is not None and "fsdp" in named.value.lower()

    @property
    def accumulation(self) -> int:
        """Micro-batches a step."""
        given = self.get("gradient_accumulation_steps")
        return (given.number or 1) if given else 1

    @property
    def launcher(self) -> str:
        """What starts the processes."""
        joined = " ".join(self.programs)
        if re.search(r"\btorch\.distributed\.(?:run|launch)\b", joined):
            return "torchrun"
        if "accelerate.commands.launch" in joined:
            return "accelerate"
        return self.programs[0] if self.programs else ""

    @property
    def processes(self) -> int | None:
        """How many processes train; None where the launch does not say."""
        total = self.get("num_processes", "ntasks")
        if total:
            return total.number
        nodes, each = (
            self.get("nnodes", "num_nodes"),
            self.get("nproc_per_node", "NPROC_PER_NODE", "num_gpus"),
        )
        included = self.get("include")
        count = each.number if each else None
        if included and ":" in included.value:
            count = included.value.count(",") + 1
        hosts = nodes.number if nodes else 1
        return count * hosts if count and hosts else None

    @property
    def distributed(self) -> bool:
        """Whether more than one process trains, as far as can be told."""
        if self.processes is not None:
            return self.processes > 1
        return self.launcher in ("torchrun", "deepspeed", "accelerate") or self.stage > 0

    @property
    def ddp(self) -> bool:
        """Whether DDP alone reduces the gradients."""
        return self.distributed and not self.deepspeed and not self.fsdp

    @property
    def deepspeed(self) -> bool:
        """Whether DeepSpeed trains."""
        kind, named = (
            self.get("distributed_type"),
            self.get("deepspeed", "deepspeed_config_file", "zero_stage"),
        )
        held = any(name.startswith(("zero_optimization", "deepspeed_config.")) for name in self.options)
        return held or named is not None or (kind is not None and kind.value.lower() == "deepspeed")

    @property
    def model(self) -> Option | None:
        """What names the model."""
        named = (self.options[name] for name in _MODELS if name in self.options)
        return next((given for given in named if not given.value.startswith("{")), None)


_LORA_SWITCHES = (
    "use_lora", "lora", "use_peft", "lora_enable", "peft_enable", "enable_lora", "use_llm_lora",
    "use_backbone_lora", "use_vision_lora", "q_lora", "use_qlora",
)  # fmt: skip
_KINDS = ("lora", "qlora", "longlora", "adalora")
_LORA_KINDS: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    (
        "train_type",
        "tuner_type",
        "sft_type",
        "finetuning_type",
        "adapter",
        "training_recipe",
        "tune_type_llm",
    ),
    _KINDS,
)
_LORA_BY_DEFAULT = frozenset({"swift", "llamafactory-cli"})  # what these train when nothing is said
_VISION_LORA = ("vision_lora", "use_vision_lora", "use_backbone_lora")
_FREEZES = (
    "freeze_vision_tower", "freeze_vision_modules", "freeze_vision_encoder", "freeze_backbone", "freeze_vit",
)  # fmt: skip
_TUNES = (
    "tune_vision", "tune_vision_tower", "tune_mm_vision", "train_vision_encoder", "unfreeze_mm_vision_tower",
)  # fmt: skip
_LLM_FREEZES = ("freeze_llm", "freeze_language_model", "tune_mm_mlp_adapter")  # the last: it alone is trained
_LLM_TUNES = ("tune_llm", "tune_mm_llm")
_PARTS = ("tune_type_vision_tower", "mm_tunable_parts")
_MODELS = (
    "model_name_or_path", "model", "model_id", "model_id_or_path", "model_path", "model_name", "base_model",
    "pretrained_model_path",
)  # fmt: skip
