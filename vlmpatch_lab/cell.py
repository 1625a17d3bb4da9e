"""One small training as data: what a user's script would say. ``run.py`` trains it.

Cells that say ``compared`` have one measure whatever their engine is: the same samples, step by step and
micro-batch by micro-batch, in one process without an engine and with checkpointing off. Gradients of
every step and what the steps made of the parameters are compared with it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORLD = 2
ENGINES = ("none", "plain", "plain_zeros", "ddp", "ddp_unused", "fsdp1", "fsdp2", "zero1", "zero2", "zero3")
# What a row of data is, by step of the optimizer, micro-batch of the window, and rank.
PATTERNS: dict[str, Callable[[int, int, int], str]] = {
    "images": lambda step, micro, rank: "image",
    "one-rank-text": lambda step, micro, rank: "text" if rank else "image",
    "alternating": lambda step, micro, rank: "text" if (step + micro + rank) % 2 else "image",
    "text-step": lambda step, micro, rank: "text" if step == 1 else "image",
    "text-first": lambda step, micro, rank: "image" if micro else "text",
    "text-last": lambda step, micro, rank: "text" if micro else "image",
    "text": lambda step, micro, rank: "text",
    # As in a shuffled data set: images on both ranks, on one, and in every seventh micro-batch nowhere.
    "mixed": lambda step, micro, rank: (
        "text" if (5 * step + 3 * micro + 2 * rank) % 7 in (0, 2, 3) else "image"
    ),
}
OPTIMIZERS = ("adamw", "sgd")  # SGD shows the scale of a gradient, which Adam takes away
# LoRA on every block; on the language model's only; on every block and modules_to_save; on the experts that
# are modules; on the experts that are one parameter; none. AdaLoRA on every block.
TUNINGS = ("lora", "lora_llm", "lora_saved", "lora_experts", "lora_stacked", "adalora", "full")
CHECKPOINTING = (
    "off",
    "default",
    "empty",
    "reentrant",
    "nonreentrant",
    "kbit",
)  # kbit: peft prepares the model
VARIANTS = ("", "old_format", "old_flag", "override", "copied")
# Whether the first and the second of two backwards are ``loss.backward()`` by themselves.
PAST_THE_ENGINE = {
    "past-the-engine": (True, True),
    "first-past-the-engine": (True, False),
}
# A module of the user's own around the model, which asks its tower for more: see wrappers.py.
WRAPPERS = (
    *("wrapper", "wrapper-before", "wrapper-several", "wrapper-embedded", "wrapper-detached"),
    # A model of the user's own, around the parts of another; its parts by the names of others, or by its own.
    *("wrapper-own", "wrapper-bridge", "wrapper-bridge-ids"),
    *("wrapper-own-tuned", "wrapper-bridge-tuned"),  # and LoRA around it
)
SCENARIOS = (
    *("", "resume", "resume-within", "no_sync", "extra", "frozen", "projector", "biases", "dummy-first"),
    *("two-backwards", "overflow", "old_names", *PAST_THE_ENGINE, *WRAPPERS),
)
# Each forward has a backward of its own.
BACKWARDS_APART = ("two-backwards", "first-past-the-engine")
# Those that change what is right.
PLAIN_SCENARIOS = ("extra", "frozen", "projector", "biases", "overflow", *WRAPPERS)
PLAIN_CONFIG = ("gradient_clipping",)  # of DeepSpeed's configuration, what changes what is right


@dataclass(frozen=True)
class Cell:
    """One training. Every field has the meaning a user's script would give it."""

    kind: str = "qwen2_vl"
    # "none": two ranks without an engine, gradients averaged by hand. "plain": one process that sees the
    # samples of every rank; a parameter without a gradient is skipped, or ("plain_zeros") gets a zero.
    engine: str = "ddp"
    tuning: str = "lora"
    forwards: int = 1  # forwards before the one backward
    checkpointing: str = "default"
    input_grads: bool = True  # LoRA only: enable_input_require_grads(), as every framework calls it
    steps: int = 0  # optimizer steps after the recorded backward
    variant: str = ""  # how the model's class differs from upstream's, see loading.VARIANTS
    trainer: str = ""  # a framework that does all of it by its own means, see tests.lab.trainers
    zero: dict[str, Any] = field(default_factory=dict)  # merged into zero_optimization
    # Optimizer steps held against the same samples in one process without an engine, gradients of each
    # and the parameters at the end. 0: the first gradients alone, against ``reference`` as it was.
    compared: int = 0
    accumulation: int = 1  # micro-batches a window
    pattern: str = "images"  # which rank has images in which micro-batch
    optimizer: str = "adamw"
    config: dict[str, Any] = field(default_factory=dict)  # merged into DeepSpeed's configuration
    dtype: str = "float32"
    device: str = "cpu"  # or "cuda": a GPU for each rank, and NCCL between them
    # What a script may do besides: "resume" (saves and loads a checkpoint after the first step),
    # "resume-within" (in the second window, which then begins anew), "overflow" (the first step's loss is
    # infinite on one rank, so a loss scaler passes over that step), "no_sync" (ZeRO-1), "extra" (a trainable
    # parameter that nothing uses), "frozen" (the vision tower), "projector" (only what
    # joins the tower to the language model is trained), "biases" (only they are), "dummy-first" (the tower
    # runs on a rank without an image too, before the text embedding and not after it), "two-backwards" (each
    # forward has a backward of its own before the step), "old_names" (a trainer is built with the names that
    # arguments had in 2024),
    # "past-the-engine" (loss.backward() by itself), "first-past-the-engine" (the first of two backwards),
    # and those of WRAPPERS.
    scenario: str = ""
    world: int = WORLD  # how many ranks

    def __post_init__(self) -> None:
        known = {
            "engine": ENGINES,
            "tuning": TUNINGS,
            "checkpointing": CHECKPOINTING,
            "variant": VARIANTS,
            "pattern": tuple(PATTERNS),
            "optimizer": OPTIMIZERS,
            "scenario": SCENARIOS,
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} = {getattr(self, name)!r}: not one of {', '.join(values)}")
        if not self.compared and (self.accumulation > 1 or self.pattern != "images"):
            raise ValueError(f"{self.id}: accumulation and patterns show in steps that are compared")

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        parts = [self.kind, self.engine, self.tuning, f"f{self.forwards}", self.checkpointing]
        parts += [self.variant] if self.variant else []
        parts += [self.trainer] if self.trainer else []
        parts += [] if self.input_grads else ["noinputgrads"]
        parts += [f"s{self.steps}"] if self.steps else []
        parts += [f"{name}={value}" for name, value in sorted(self.zero.items())]
        parts += [f"c{self.compared}", f"a{self.accumulation}", self.pattern] if self.compared else []
        parts += [said for said in (self.scenario,) if said]
        parts += [self.optimizer] if self.optimizer != "adamw" else []
        parts += [self.dtype] if self.dtype != "float32" else []
        parts += [self.device] if self.device != "cpu" else []
        parts += [f"w{self.world}"] if self.world != WORLD else []
        parts += [f"{name}={value}" for name, value in sorted(self.config.items())]
        return "-".join(parts).replace("/", "_").replace(" ", "")

    @property
    def ranks(self) -> int:
        """How many processes train it."""
        return 1 if self.engine.startswith("plain") else self.world

    @property
    def reference(self) -> Cell:
        """What is right for this cell: the same training with checkpointing off.

        With checkpointing off already, the same training without an engine: an engine that is wrong
        by itself must not become the measure.

        A framework that shards, by FSDP or ZeRO, is held against itself under DDP: ZeRO-2 of DeepSpeed 0.18.2
        loses micro-batches, with checkpointing off as well.

        With ``compared``, the same samples in one process. The units of FSDP1 know no parameter that an
        optimizer skips: there the measure gives a zero to what no rank used.
        """
        scenario = self.scenario if self.scenario in PLAIN_SCENARIOS else ""
        if self.compared:
            engine = "plain_zeros" if self.engine in ("plain_zeros", "fsdp1") else "plain"
            kept = {name: value for name, value in self.config.items() if name in PLAIN_CONFIG}
            shared = dataclasses.replace(self, dtype="float32", zero={}, config=kept, scenario=scenario)
            return dataclasses.replace(
                shared, engine=engine, checkpointing="off", variant="", input_grads=True
            )
        if self.checkpointing == "off" and not self.trainer:
            return dataclasses.replace(self, engine="none", zero={}, scenario=scenario)
        right = dataclasses.replace(
            self, checkpointing="off", variant="", input_grads=True, scenario=scenario
        )
        if self.trainer and self.engine.startswith(("fsdp", "zero")):
            return dataclasses.replace(right, engine="ddp", zero={}, config={})
        return right


def read_cells(path: Path) -> list[Cell]:
    return [Cell(**entry) for entry in json.loads(path.read_text())]


def write_cells(path: Path, cells: list[Cell]) -> None:
    path.write_text(json.dumps([dataclasses.asdict(cell) for cell in cells], indent=1))
