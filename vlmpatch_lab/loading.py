"""The model as a training script would have it just before it is handed to an engine."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import transformers

from vlmpatch_lab.cell import Cell
from vlmpatch_lab.wrappers import TUNED, WRAPPERS

try:  # cells that need what is missing here fail, the others run
    import peft
except ImportError:
    peft = None


def load(cell: Cell, folder: Path) -> torch.nn.Module:
    known = class_of(folder)
    remote = known is transformers.AutoModel
    torch.manual_seed(0)  # what a checkpoint lacks is drawn, and drawn alike in every process
    model = known.from_pretrained(folder, torch_dtype=getattr(torch, cell.dtype), trust_remote_code=remote)
    # Only then: transformers 5 finds what to rename in a checkpoint by the class it is asked for.
    model.__class__ = VARIANTS[cell.variant](type(model))
    model.config.use_cache = False
    model.to(cell.device).train()
    loaded: torch.nn.Module = model
    return loaded


def class_of(folder: Path) -> Any:
    """What a checkpoint is loaded with; ``AutoModel`` for remote code."""
    written = json.loads((folder / "config.json").read_text())
    if "auto_map" in written:
        return transformers.AutoModel
    if "architectures" in written:  # Omni's thinkers have no place in AutoConfig on 4.57
        return getattr(transformers, written["architectures"][0])
    return getattr(transformers, transformers.AutoConfig.from_pretrained(folder).architectures[0])


def prepare(cell: Cell, folder: Path) -> Any:
    """The model as a training script would have it just before it is handed to the engine."""
    model: Any = load(cell, folder)
    if cell.checkpointing == "kbit":
        model.is_loaded_in_8bit = True  # as quantised loading leaves it; the weights stay float32
        model = peft.prepare_model_for_kbit_training(model)
    if cell.scenario == "extra":
        model.register_parameter("unused", torch.nn.Parameter(torch.ones(7)))
    if cell.scenario in TRAINED:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(TRAINED[cell.scenario](name))
    lora = cell.tuning != "full"
    if cell.scenario in TUNED:
        model = TUNED[cell.scenario](model)
    if lora:
        saved = ["merger"] if cell.tuning == "lora_saved" else None
        only = EXPERTS.get(cell.tuning)
        vision = cell.tuning != "lora_llm"
        if cell.tuning == "adalora":  # without a task PEFT passes by what AdaLoRA adds to the loss
            model = add_lora(model, vision, task="CAUSAL_LM", ranks=RANKS)
        else:
            task = "CAUSAL_LM" if cell.scenario in TUNED else None
            model = add_lora(model, vision, saved=saved, task=task, only=only)
    arguments: dict[str, tuple[Any, ...]] = {
        "default": (),
        "empty": ({},),
        "reentrant": ({"use_reentrant": True},),
        "nonreentrant": ({"use_reentrant": False},),
    }
    if cell.checkpointing in arguments:
        model.gradient_checkpointing_enable(*arguments[cell.checkpointing])
        if lora and cell.input_grads:
            model.enable_input_require_grads()
    return wrapped(cell, model)


def wrapped(cell: Cell, model: Any) -> Any:
    """``model`` in the module of the user's own that the cell has around it, or as it is."""
    return WRAPPERS[cell.scenario](model) if cell.scenario in WRAPPERS else model


TOWERS = ("visual", "vision")


PROJECTORS = ("merger", "projector", "connector")  # Qwen's and GLM's is a part of the tower


TRAINED: dict[str, Callable[[str], bool]] = {
    "frozen": lambda name: not any(tower in name for tower in TOWERS),
    "projector": lambda name: any(projector in name for projector in PROJECTORS),
    "biases": lambda name: name.endswith("bias"),
}


RANKS = {"init_r": 4, "target_r": 2, "total_step": 1000}  # AdaLoRA's


EXPERTS = {"lora_experts": "modules", "lora_stacked": "parameters"}


def add_lora(
    model: torch.nn.Module,
    vision: bool,
    saved: list[str] | None = None,
    task: str | None = None,
    only: str | None = None,
    ranks: dict[str, int] | None = None,
) -> Any:
    """LoRA on every linear layer inside a numbered block: those are what checkpointing recomputes.

    ``only`` those of the experts, which are ``modules`` or ``parameters``. With ``ranks`` it is AdaLoRA.
    """
    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and any(part.isdigit() for part in name.split(".")[:-1])
        and "merger" not in name
        and (vision or not any(tower in name for tower in TOWERS))
        and (only is None or ".experts." in name)
    ]
    stacked = {}
    if only == "parameters":
        targets = []
        stacked["target_parameters"] = [
            name
            for name, parameter in model.named_parameters()
            if ".experts." in name and parameter.dim() > 2
        ]
    torch.manual_seed(1)
    made = peft.AdaLoraConfig if ranks else peft.LoraConfig
    told = {"lora_alpha": 8, "target_modules": targets, "modules_to_save": saved, "task_type": task}
    config = made(**{"r": 4, **(ranks or {})}, **told, **stacked)
    tuned = peft.get_peft_model(model, config)
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name:  # zero at first, which would make every gradient of A zero
            torch.nn.init.normal_(parameter, std=0.1)
    return tuned


def forget(model: torch.nn.Module) -> None:
    """Drop what an earlier forward left in a model of Qwen2-VL's kind: a measure sees one sample alone."""
    for module in model.modules():
        if getattr(module, "rope_deltas", None) is not None:
            module.rope_deltas = None


def old_format(base: type) -> type:
    """Switches checkpointing on the way remote code from before transformers 4.35 does."""

    def _set_gradient_checkpointing(self: Any, module: torch.nn.Module, value: bool = False) -> None:
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = value
            module._gradient_checkpointing_func = torch.utils.checkpoint.checkpoint

    return type(base.__name__, (base,), {"_set_gradient_checkpointing": _set_gradient_checkpointing})


def old_flag(base: type) -> type:
    """The same, and sets nothing but the flag: enough for its own modules, not for transformers'."""

    def _set_gradient_checkpointing(self: Any, module: torch.nn.Module, value: bool = False) -> None:
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = value

    return type(base.__name__, (base,), {"_set_gradient_checkpointing": _set_gradient_checkpointing})


def override(base: Any) -> type:
    """Has its own ``gradient_checkpointing_enable`` that passes on what it was given, ``None`` too."""
    current = base.gradient_checkpointing_enable

    def gradient_checkpointing_enable(self: Any, gradient_checkpointing_kwargs: Any = None) -> None:
        current(self, gradient_checkpointing_kwargs)

    return type(base.__name__, (base,), {"gradient_checkpointing_enable": gradient_checkpointing_enable})


def copied(base: Any) -> type:
    """Has transformers 4's ``gradient_checkpointing_enable`` in its own code, default and all."""
    current = base.gradient_checkpointing_enable

    def gradient_checkpointing_enable(self: Any, gradient_checkpointing_kwargs: Any = None) -> None:
        if gradient_checkpointing_kwargs is None:
            gradient_checkpointing_kwargs = {"use_reentrant": True}
        current(self, gradient_checkpointing_kwargs=gradient_checkpointing_kwargs)

    return type(base.__name__, (base,), {"gradient_checkpointing_enable": gradient_checkpointing_enable})


VARIANTS: dict[str, Callable[[type], Any]] = {
    "": lambda base: base,
    "old_format": old_format,
    "old_flag": old_flag,
    "override": override,
    "copied": copied,
}


def preload_models(folders: Iterable[Path] = ()) -> None:
    """What checkpoints are loaded with, imported and made once, before the fork.

    Args:
        folders: the checkpoints.
    """
    with contextlib.suppress(Exception):  # transformers 5 compiles every family's patterns at the first load
        importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("")
    with contextlib.suppress(Exception):  # as above
        importlib.import_module("PIL.Image").preinit()
    for folder in folders:
        for imports in (class_of, transformers.AutoProcessor.from_pretrained):
            with contextlib.suppress(Exception):
                imports(folder)
