"""The table of axes as data: what a training does otherwise than the plain one. ``training.py`` does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmpatch_lab.cell import Cell

ENGINES = ("ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")
ZERO = ("zero1", "zero2", "zero3")
TORCH = ("ddp", "fsdp1", "fsdp2")
SHARDED = ("fsdp1", "fsdp2")
STEPS = 3
# A unit of FSDP1 that is used gives a zero to what is not used within it, one that is not used gives nothing:
# AdamW's weight decay would tell them apart.
OPTIMIZERS = {"fsdp1": "sgd"}


@dataclass(frozen=True)
class Row:
    """One training; what it does not say is that of the plain one: a Qwen2-VL, full, checkpointing on."""

    group: str
    adapter: str = ""  # of adapters.py
    objective: str = "sft"  # of objectives.py
    memory: str = "default"  # of memory.py
    between: str = ""  # of lifecycle.py: what the script does between two steps
    data: str = "images"  # of data.py
    cell: Mapping[str, Any] = field(default_factory=dict)  # fields of the lab's Cell
    low: bool = False  # of half precision: held to less
    amplified: float = 1.0  # what its loss, or its model, multiplies rounding by
    engines: tuple[str, ...] = ENGINES  # under which it says anything
    text: bool = False  # a Llama instead
    kind: str = ""  # or another family
    evaluated: bool = False  # the measure is what the model evaluates: it may train another function
    headless: bool = False  # the language model's head is frozen: nothing uses it
    parallel: str = ""  # of parallel.py
    together: int = 1  # ranks that train on one batch between them


def _low(dtype: str = "float32", **more: Any) -> dict[str, Any]:
    """SGD, which shows the size of a gradient."""
    return {"dtype": dtype, "optimizer": "sgd", **more}


# A sequence on two ranks; SGD, for the size of its gradients is what goes wrong.
SLICED: dict[str, Any] = {
    "parallel": "ulysses",
    "data": "sliced",
    "together": 2,
    "cell": {"optimizer": "sgd"},
    "text": True,
    "engines": ZERO,
}
COLD = 10.0  # a temperature of 0.1 under what is compared
STEEP = 10.0  # one unit in the last place of a Gemma 3n's weights moves its first gradients by 7e-6
# Torch's autocast and its scaler of losses, where DeepSpeed has settings of its own.
HALF: dict[str, Any] = {"objective": "autocast_half", "parallel": "scaled", "low": True, "engines": TORCH}
SCALED = {"fp16": {"enabled": True, "initial_scale_power": 6, "hysteresis": 1}}
TWO: dict[str, Any] = {"accumulation": 2}
ROWS = {
    "plain": Row("data"),
    # --- precision
    "bf16": Row("precision", cell=_low("bfloat16"), low=True, engines=ZERO),
    "fp16": Row("precision", cell=_low("float16", config=SCALED), low=True, engines=ZERO),
    "fp16-overflow": Row(
        "precision",
        cell=_low("float16", config=SCALED, scenario="overflow"),
        low=True,
        engines=ZERO,
    ),
    "fp16-scaler": Row("precision", **HALF, cell=_low()),
    "fp16-scaler-overflow": Row("precision", **HALF, cell=_low(scenario="overflow")),
    "autocast": Row("precision", objective="autocast", cell=_low(), low=True),
    "deepspeed-autocast": Row(
        "precision",
        cell=_low(config={"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
        low=True,
        engines=ZERO,
    ),
    "bf16-accumulated-in-fp32": Row(
        "precision",
        cell=_low("bfloat16", accumulation=2, config={"data_types": {"grad_accum_dtype": "fp32"}}),
        low=True,
        engines=("zero2", "zero3"),  # stage 1 then has an optimizer that shows neither
    ),
    # --- PEFT
    "lora": Row("adapters", adapter="lora"),
    "lora-dropout": Row("adapters", adapter="dropout"),
    "dora": Row("adapters", adapter="dora"),
    "rslora": Row("adapters", adapter="rslora"),
    "vera": Row("adapters", adapter="vera"),
    "ia3": Row("adapters", adapter="ia3"),
    "adalora": Row("adapters", adapter="adalora"),
    "prefix": Row("adapters", adapter="prefix", text=True),
    "prompt": Row("adapters", adapter="prompt", text=True),
    "token-indices": Row("adapters", adapter="token_indices"),
    "modules-to-save": Row("adapters", adapter="saved"),
    "all-linear": Row("adapters", adapter="all_linear"),
    "two-adapters": Row("adapters", adapter="two"),
    "conv": Row("adapters", adapter="conv"),
    # --- weights of 4 and 8 bits, of stacks that have bitsandbytes; FSDP1 wants one dtype of all
    "nf4": Row("adapters", adapter="nf4", engines=("ddp", *ZERO, "fsdp2")),
    "nf4-as-floats": Row("adapters", adapter="nf4_as_floats"),
    "int8": Row("adapters", adapter="int8", engines=("ddp", *ZERO)),
    # Adapters stay in float32, as PEFT makes them.
    "bf16-lora": Row("precision", adapter="lora", cell=_low("bfloat16"), low=True, engines=ZERO),
    "bf16-nf4": Row("precision", adapter="nf4", cell=_low("bfloat16"), low=True, engines=ZERO),
    "bf16-int8": Row("precision", adapter="int8", cell=_low("bfloat16"), low=True, engines=ZERO),
    # --- objectives
    "dpo": Row("objectives", objective="dpo"),
    "dpo-lora": Row("objectives", objective="dpo_lora", adapter="lora"),
    "kto": Row("objectives", objective="kto"),
    "reward": Row("objectives", objective="reward"),
    "grpo": Row("objectives", objective="grpo"),
    "distillation": Row("objectives", objective="distillation"),
    "contrastive": Row("objectives", objective="contrastive", headless=True, amplified=COLD),
    "gradcache": Row(
        "objectives", objective="gradcache", cell={"accumulation": 2}, headless=True, amplified=COLD
    ),
    # A module around the model that asks its tower for more where a batch has images.
    "wrapper": Row(
        "objectives",
        data="mixed",
        cell={"scenario": "wrapper", "accumulation": 2},
        engines=(*ZERO, "fsdp1", "fsdp2"),
    ),
    # A model of the user's own, in front of a language model of transformers.
    "bridge": Row(
        "objectives",
        kind="llava",
        data="mixed",
        cell={"scenario": "wrapper-bridge", "accumulation": 2},
        engines=(*ZERO, "fsdp1", "fsdp2"),
    ),
    # --- parallelism
    "hpz": Row("parallelism", cell={"world": 4, "zero": {"zero_hpz_partition_size": 2}}, engines=("zero3",)),
    "ulysses": Row("parallelism", **SLICED, objective="gathered"),
    "ulysses-own-share": Row("parallelism", **SLICED, objective="own_share"),
    "tensor-parallel": Row(
        "parallelism", parallel="tensor", together=2, cell={"world": 4}, text=True, engines=("fsdp2",)
    ),
    "autotp": Row(
        "parallelism",
        parallel="autotp",
        together=2,
        text=True,
        engines=ZERO,
        cell={"config": {"tensor_parallel": {"autotp_size": 2}}},
    ),
    "expert-parallel": Row(
        "parallelism",
        adapter="experts",
        parallel="experts",
        data="even",
        text=True,
        engines=("zero1", "zero2"),
    ),
    # --- memory
    "activations-offloaded": Row("memory", objective="offloaded"),
    "selective-checkpointing": Row("memory", memory="selective"),
    "checkpoint-sequential": Row("memory", memory="sequential"),
    "deepspeed-checkpointing": Row("memory", memory="deepspeed", text=True),
    "compiled": Row("memory", memory="compiled", text=True),
    "compiled-engine": Row("memory", parallel="compiled", text=True),
    "compiled-engine-lora": Row("memory", parallel="compiled", adapter="lora"),
    "compiled-engine-mixed": Row("memory", parallel="compiled", data="mixed"),
    "tiled-mlp": Row("memory", memory="tiled"),
    "shared-layers": Row("memory", kind="gemma3n_text", evaluated=True, amplified=STEEP),
    "shared-layers-without-checkpointing": Row(
        "memory", memory="none", kind="gemma3n_text", evaluated=True, amplified=STEEP
    ),
    # --- lifecycle
    "freeze": Row("lifecycle", between="freeze"),
    "unfreeze": Row("lifecycle", between="unfreeze"),
    "toggle": Row("lifecycle", between="toggle", cell={"compared": 4}),
    "evaluate": Row("lifecycle", between="evaluate", adapter="lora"),
    "resume": Row("lifecycle", between="resume"),
    "universal-checkpoint": Row("lifecycle", between="universal", engines=ZERO),
    "skip": Row("lifecycle", between="skip"),
    "ema": Row("lifecycle", between="ema"),
    # --- data
    "packed": Row("data", data="packed", text=True),
    "packed-without-checkpointing": Row("data", data="packed", memory="none", text=True),
    "padded": Row("data", data="padded"),
    "videos-beside-images": Row("data", data="videos"),
    "empty-labels": Row("data", data="empty", objective="summed"),
    "uneven-last-batch": Row("data", data="uneven"),
    "join": Row("data", between="join", engines=("ddp",)),
    # --- several of these at once, as scripts have them
    "dora-mixed": Row("combined", adapter="dora", memory="nonreentrant", data="mixed", cell=TWO),
    "nf4-mixed": Row(
        "combined",
        adapter="nf4",
        memory="nonreentrant",
        data="mixed",
        cell=TWO,
        engines=("ddp", *ZERO, "fsdp2"),
    ),
    "nf4-as-floats-mixed": Row("combined", adapter="nf4_as_floats", data="mixed", cell=TWO),
    "int8-mixed": Row("combined", adapter="int8", data="mixed", cell=TWO, engines=("ddp", *ZERO)),
    "dropout-mixed": Row("combined", adapter="dropout", memory="nonreentrant", data="mixed", cell=TWO),
    "modules-to-save-mixed": Row("combined", adapter="saved", memory="nonreentrant", data="mixed", cell=TWO),
    "dpo-lora-mixed": Row(
        "combined", adapter="lora", objective="dpo_lora", memory="nonreentrant", data="mixed", cell=TWO
    ),
    "dpo-lora-nonreentrant": Row("combined", adapter="lora", objective="dpo_lora", memory="nonreentrant"),
    "gradcache-lora": Row(
        "combined",
        adapter="lora",
        objective="gradcache",
        memory="nonreentrant",
        cell=TWO,
        amplified=COLD,
    ),
    "rehearsal": Row("combined", memory="nonreentrant", data="rehearsal", cell=TWO),
    "clipped-mixed": Row("combined", data="mixed", cell={**TWO, "config": {"gradient_clipping": 1.0}}),
    "bf16-mixed": Row(
        "combined", data="mixed", cell=_low("bfloat16", accumulation=2), low=True, engines=ZERO
    ),
    "fp16-overflow-mixed": Row(
        "combined",
        data="mixed",
        cell=_low("float16", config=SCALED, scenario="overflow", accumulation=2),
        low=True,
        engines=ZERO,
    ),
    "autocast-mixed-lora": Row(
        "combined",
        adapter="lora",
        objective="autocast",
        memory="nonreentrant",
        data="mixed",
        cell=_low(accumulation=2),
        low=True,
    ),
    "groups-mixed": Row("combined", parallel="groups", data="mixed", cell=TWO),
    "checkpointing-toggled": Row("combined", between="checkpointing", data="mixed", cell=TWO),
    # FSDP gathers what lies outside its units where it is called itself; generate() calls the model inside.
    "generate-between": Row(
        "combined", between="generate", adapter="lora", memory="nonreentrant", engines=("ddp", *ZERO)
    ),
    "evaluate-mixed": Row("combined", between="evaluate_mixed", data="mixed", cell=TWO),
    "freeze-resume": Row(
        "combined", between="freeze_resume", memory="nonreentrant", engines=(*ZERO, *SHARDED)
    ),
    "ema-deepcopied": Row(
        "combined", between="deepcopied", memory="nonreentrant", engines=("ddp", "zero1", "zero2")
    ),
    "resume-mixed-lora": Row(
        "combined", between="resume", adapter="lora", memory="nonreentrant", data="mixed", cell=TWO
    ),
    "adapters-in-turn": Row(
        "combined",
        between="adapters_in_turn",
        adapter="both",
        memory="nonreentrant",
        engines=(*ZERO, *SHARDED),
    ),
    "videos-qwen3": Row("combined", kind="qwen3_vl", data="videos", memory="nonreentrant"),
    "videos-and-texts": Row("combined", data="videos_and_texts", cell=TWO),
    "rows-with-and-without": Row("combined", data="rows_with_and_without", cell=TWO),
    "offloaded-mixed": Row(
        "combined",
        data="mixed",
        cell={**TWO, "zero": {"offload_optimizer": {"device": "cpu"}}},
        engines=ZERO,
    ),
    "hpz-mixed-lora": Row(
        "combined",
        adapter="lora",
        memory="nonreentrant",
        data="mixed",
        cell={**TWO, "world": 4, "zero": {"zero_hpz_partition_size": 2}},
        engines=("zero3",),
    ),
}
GROUPS = ("precision", "adapters", "objectives", "parallelism", "memory", "lifecycle", "data", "combined")


def cell_of(name: str, engine: str) -> Cell:
    """The training of the row ``name`` under ``engine``."""
    row = ROWS[name]
    said = {"compared": STEPS, "optimizer": OPTIMIZERS.get(engine, "adamw"), **row.cell}
    kind = row.kind or ("llama" if row.text else "qwen2_vl")
    return Cell(kind, engine, "full", trainer=name, **said)
