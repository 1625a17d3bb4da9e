"""What one rank of a cell does: build, wrap, forward, backward, record. Imports the whole stack."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel

from vlmpatch_lab.cell import PATTERNS, WORLD, Cell
from vlmpatch_lab.collectives import wait_for_every_collective as wait_for_every_collective
from vlmpatch_lab.meters import Clock, Meter
from vlmpatch_lab.patience import stretched

try:  # cells that need what is missing here fail, the others run
    import deepspeed
    import deepspeed.comm
except ImportError:
    deepspeed = None
try:
    import peft
except ImportError:
    peft = None

Batch = dict[str, torch.Tensor]
Gradients = dict[str, torch.Tensor]
Report = dict[str, Any]
frameworks: Any = None  # the module that trains the cells whose ``trainer`` is set
IGNORED = -100  # the label that counts for nothing


def main(cell: Cell, model: str, folder: Path, rank: int, port: int) -> None:
    """Entry of a forked rank; writes ``rank<N>.json``, ``rank<N>.pt`` and ``rank<N>.log``."""
    _log_to(folder / f"rank{rank}.log")
    report: dict[str, Any] = {"ok": False}
    try:
        with process_group(rank, port, cell.ranks, cell.device):
            report |= train(cell, Path(model), folder / f"rank{rank}.pt")
        report["ok"] = True
    except Exception as error:
        traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"
        raise SystemExit(1) from None
    finally:
        report["patches"] = states()
        (folder / f"rank{rank}.json").write_text(json.dumps(report))


def train(cell: Cell, folder: Path, out: Path) -> dict[str, Any]:
    if cell.trainer:
        if frameworks is None:
            raise RuntimeError(f"{cell.id}: no --trainers module was named")
        report: dict[str, Any] = frameworks.train(cell, folder, out)
        return report
    model = prepare(cell, folder)
    engine = ENGINES[cell.engine](cell, model)
    if cell.compared:
        return train_compared(cell, engine, model, folder, out)
    batches = make_batches(cell, folder, dist.get_rank())
    losses = []
    for step in range(cell.steps + 1):
        parts = []
        for batch in batches:
            if cell.checkpointing == "off":  # a measure, or a run that needs none
                forget(model)
            parts.append(engine.forward(batch))
        loss = torch.stack(parts).sum()
        engine.backward(loss)
        losses.append(loss.item())
        if step == 0:
            torch.save(gradients(engine, model), out)
        if cell.steps:
            engine.step()
    return {"losses": losses, "digest": digest(model) if cell.steps else None}


def train_compared(cell: Cell, engine: Engine, model: torch.nn.Module, folder: Path, out: Path) -> Report:
    """Train by windows of micro-batches; record the gradients of every step and what became of the model."""
    samples = Samples(cell, folder)
    # One process sees the samples of all ranks, in the order of the ranks.
    seen = range(WORLD) if cell.ranks == 1 else [dist.get_rank()]
    with engine.gathered():
        before = parameters(model)
    meter: Meter | Clock = Meter(model) if cell.engine == "zero3" else Clock()
    steps, losses, cost = [], [], {}
    for step in range(cell.compared):
        meter.start()
        for micro in micro_batches(cell, step):
            if micro is None:
                engine = resumed(cell, engine, folder, out.parent)
                model = engine.whole()
                continue
            last = micro == cell.accumulation - 1
            for rank in seen:
                batches = samples.of(step, micro, rank)
                with engine.micro_batch(last=last):
                    idle = idle_tower(cell, samples, batches, model)
                    parts = [*idle, *map(engine.forward, batches)]
                    apart = parts if cell.scenario == "two-backwards" else [torch.stack(parts).sum()]
                    if cell.scenario == "overflow" and (step, micro, rank) == (0, 0, 0):
                        apart = [loss * math.inf for loss in apart]
                    for loss in apart:
                        engine.backward(loss)
                losses.append(sum(part.item() for part in parts))
            if last:
                # DeepSpeed reads gradients, and does not know the order that round robin puts them in.
                unread = cell.zero.get("round_robin_gradients")
                with engine.gathered():
                    steps.append({} if unread else gradients(engine, model))
            engine.step(last=last)
        cost = meter.stop()
    with engine.gathered():
        changed = {name: value - before[name] for name, value in parameters(model).items()}
        held = digest(model)
    torch.save({"steps": steps, "parameters": changed}, out)
    if cell.device != "cpu":
        cost["peak_bytes"] = torch.cuda.max_memory_allocated()
    return {"losses": losses, "digest": held, "cost": cost}


def micro_batches(cell: Cell, step: int) -> list[int | None]:
    """Those of one window; None is where the training ends, and begins again from its checkpoint."""
    window: list[int | None] = [*range(cell.accumulation)]
    stopped = {"resume": [None, *window], "resume-within": [0, None, *window]}
    return stopped.get(cell.scenario, window) if step == 1 else window


def idle_tower(
    cell: Cell, samples: Samples, batches: list[Batch], model: torch.nn.Module
) -> list[torch.Tensor]:
    """Nothing, or where the cell says so a zero that the tower has a part in."""
    if cell.scenario != "dummy-first" or any("pixel_values" in batch for batch in batches):
        return []
    tower = next(module for name, module in model.named_modules() if name.endswith("visual"))
    image = samples.image(0)
    seen: Any = tower(image["pixel_values"], grid_thw=image["image_grid_thw"])
    parts = [seen] if isinstance(seen, torch.Tensor) else seen.to_tuple()
    return [torch.stack([part.sum() for part in parts]).sum() * 0]


def resumed(cell: Cell, engine: Engine, folder: Path, out: Path) -> Engine:
    """Save, and go on in a new engine around a new model."""
    engine.save(out / "checkpoint")
    again = ENGINES[cell.engine](cell, prepare(cell, folder))
    again.load(out / "checkpoint")
    return again


def states() -> dict[str, str]:
    """What became of every patch in this rank; empty in a bare run."""
    vlmpatch = sys.modules.get("vlmpatch")
    return {name: s.state.value for name, s in vlmpatch.status().items()} if vlmpatch else {}


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
    if lora:
        saved = ["merger"] if cell.tuning == "lora_saved" else None
        only = EXPERTS.get(cell.tuning)
        model = add_lora(model, vision=cell.tuning != "lora_llm", saved=saved, only=only)
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
    return model


TOWERS = ("visual", "vision")
PROJECTORS = ("merger", "projector", "connector")  # Qwen's and GLM's is a part of the tower
TRAINED: dict[str, Callable[[str], bool]] = {
    "frozen": lambda name: not any(tower in name for tower in TOWERS),
    "projector": lambda name: any(projector in name for projector in PROJECTORS),
}
EXPERTS = {"lora_experts": "modules", "lora_stacked": "parameters"}


def add_lora(
    model: torch.nn.Module,
    vision: bool,
    saved: list[str] | None = None,
    task: str | None = None,
    only: str | None = None,
) -> Any:
    """LoRA on every linear layer inside a numbered block: those are what checkpointing recomputes.

    ``only`` those of the experts, which are ``modules`` or ``parameters``.
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
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=targets, modules_to_save=saved, task_type=task, **stacked
    )
    tuned = peft.get_peft_model(model, config)
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name:  # zero at first, which would make every gradient of A zero
            torch.nn.init.normal_(parameter, std=0.1)
    return tuned


# --- how a model's class may differ -------------------------------------------------------------


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


# --- data ---------------------------------------------------------------------------------------


def make_batches(cell: Cell, folder: Path, rank: int) -> list[Batch]:
    """One row of the checkpoint's own data a forward: no two ranks or forwards see the same."""
    return Samples(cell, folder).of(0, 0, rank)


class Samples:
    """The checkpoint's rows in their order: no two ranks, micro-batches or steps see the same.

    With no more rows left they begin again.
    """

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell = cell
        ready = folder / "batches.pt"
        self.ready: list[Batch] = torch.load(ready) if ready.exists() else []
        if not self.ready:
            text = (folder / "data" / "sft.jsonl").read_text()
            self.rows = [json.loads(line) for line in text.splitlines()]
            self.processor = transformers.AutoProcessor.from_pretrained(folder)

    def of(self, step: int, micro: int, rank: int) -> list[Batch]:
        """The batches of one micro-batch on one rank, one a forward."""
        turn = (step * self.cell.accumulation + micro) * WORLD + rank
        first = turn * self.cell.forwards
        kind = PATTERNS[self.cell.pattern](step, micro, rank)
        batches = [KINDS[kind](self, first + forward) for forward in range(self.cell.forwards)]
        return batches if self.cell.device == "cpu" else [self.moved(batch) for batch in batches]

    def moved(self, batch: Batch) -> Batch:
        dtype = getattr(torch, self.cell.dtype)
        return {
            name: value.to(self.cell.device, dtype if value.is_floating_point() else None)
            for name, value in batch.items()
        }

    def image(self, number: int) -> Batch:
        if self.ready:
            return dict(self.ready[number % len(self.ready)])
        return encode(self.processor, self.rows[number % len(self.rows)])

    def text(self, number: int) -> Batch:
        """The same row without its image."""
        if self.ready:
            return without_image(self.image(number))
        row = self.rows[number % len(self.rows)]
        first, *others = row["messages"]
        bare = {**first, "content": first["content"].removeprefix("<image>")}
        return encode(self.processor, {**row, "messages": [bare, *others], "images": []})


KINDS: dict[str, Callable[[Samples, int], Batch]] = {"image": Samples.image, "text": Samples.text}


def without_image(batch: Batch) -> Batch:
    """What is left of a ready batch: its positions that count for the loss, and no pixels."""
    shape = batch["input_ids"].shape
    counted = batch["labels"][0] != IGNORED
    return {name: value[:, counted] for name, value in batch.items() if value.shape == shape}


def encode(processor: Any, row: dict[str, Any]) -> Batch:
    from PIL import Image

    turns = []
    for message in row["messages"]:
        text = message["content"].removeprefix("<image>")
        image = [{"type": "image"}] if text != message["content"] else []
        turns.append({"role": message["role"], "content": [*image, {"type": "text", "text": text}]})
    images = [Image.open(path).convert("RGB") for path in row["images"]]
    prompt = processor.apply_chat_template(turns, tokenize=False)
    batch: Batch = dict(processor(text=[prompt], images=images or None, return_tensors="pt"))
    labels = batch["input_ids"].clone()
    special = torch.tensor(processor.tokenizer.all_special_ids)
    labels[torch.isin(labels, special)] = IGNORED
    return {**batch, "labels": labels}


# --- engines ------------------------------------------------------------------------------------


class Engine(Protocol):
    def forward(self, batch: Batch) -> torch.Tensor: ...

    def backward(self, loss: torch.Tensor) -> None: ...

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None: ...

    def gathered(self) -> contextlib.AbstractContextManager[Any]: ...

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[Any]: ...

    def step(self, last: bool = True) -> None: ...

    def whole(self) -> torch.nn.Module: ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


def make_optimizer(cell: Cell, trainable: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return getattr(torch.optim, OPTIMIZERS[cell.optimizer])(trainable, **optimizer_arguments(cell))


OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}


def optimizer_arguments(cell: Cell) -> dict[str, Any]:
    if cell.optimizer == "sgd":
        return {"lr": 0.05, "momentum": 0.9}
    # Where parameters are compared, an eps that keeps what is rounding in a gradient from becoming a step.
    return {"lr": 1e-3, "eps": 1e-3} if cell.compared else {"lr": 1e-3}


def forget(model: torch.nn.Module) -> None:
    """Drop what an earlier forward left in a model of Qwen2-VL's kind: a measure sees one sample alone."""
    for module in model.modules():
        if getattr(module, "rope_deltas", None) is not None:
            module.rope_deltas = None


class Averaged:
    """No engine: what data parallel training is by definition, and the measure of every engine."""

    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        self.cell = cell
        self.model = model
        self.trainable = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(cell, self.trainable)

    def forward(self, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        for parameter in self.trainable:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= WORLD

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        return parameter.grad

    def gathered(self) -> contextlib.AbstractContextManager[Any]:
        """Within it the model's parameters and gradients can be read."""
        return contextlib.nullcontext()

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def step(self, last: bool = True) -> None:
        if not last:
            return
        if self.cell.scenario == "overflow" and not self.finite():
            self.optimizer.zero_grad()
            return
        if clip := self.cell.config.get("gradient_clipping"):
            torch.nn.utils.clip_grad_norm_(self.trainable, clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def finite(self) -> bool:
        """Whether a loss scaler would let the optimizer take this step."""
        found = (parameter.grad for parameter in self.trainable if parameter.grad is not None)
        return all(bool(gradient.isfinite().all()) for gradient in found)

    def whole(self) -> torch.nn.Module:
        return self.model

    def save(self, folder: Path) -> None:
        raise NotImplementedError(f"{self.cell.id}: only DeepSpeed's engines save")

    load = save


class Plain(Averaged):
    """One process that sees the samples of all ranks: the measure of cells that compare steps."""

    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        super().__init__(cell, model)
        self.parts = WORLD * cell.accumulation

    def forward(self, batch: Batch) -> torch.Tensor:
        forget(self.model)
        return super().forward(batch)

    def backward(self, loss: torch.Tensor) -> None:
        if loss.requires_grad:  # a text, where nothing but the projector is trained, adds nothing
            (loss / self.parts).backward()

    def step(self, last: bool = True) -> None:
        if last and self.cell.engine == "plain_zeros":
            for parameter in self.trainable:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        super().step(last)


class Ddp(Averaged):
    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        super().__init__(cell, model)
        unused = cell.engine == "ddp_unused"
        self.model: Any = DistributedDataParallel(model, find_unused_parameters=unused)

    def backward(self, loss: torch.Tensor) -> None:
        (loss / self.cell.accumulation).backward()

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        context: contextlib.AbstractContextManager[Any] = (
            contextlib.nullcontext() if last else self.model.no_sync()
        )
        return context


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Its numbered modules; what is inside one belongs to it: an expert is no unit of its own."""
    found: dict[str, torch.nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{block}.") for block in found)
        if name.rpartition(".")[2].isdigit() and any(True for _ in module.parameters()) and not inside:
            found[name] = module
    return [*found.values()]


class Fsdp1(Averaged):
    """Every block and the whole model wrapped in torch's ``FullyShardedDataParallel``."""

    INSIDE = "_fsdp_wrapped_module."  # what it adds to the names of parameters

    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import CustomPolicy

        blocks = blocks_of(model)
        self.model: Any = FullyShardedDataParallel(
            model,
            auto_wrap_policy=CustomPolicy(lambda module: any(module is block for block in blocks)),
            use_orig_params=True,
            device_id=torch.device("cpu"),
        )
        super().__init__(cell, self.model)

    def backward(self, loss: torch.Tensor) -> None:
        (loss / self.cell.accumulation).backward()

    def gathered(self) -> contextlib.AbstractContextManager[Any]:
        context: contextlib.AbstractContextManager[Any] = self.model.summon_full_params(
            self.model, writeback=False, with_grads=True
        )
        return context

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        context: contextlib.AbstractContextManager[Any] = (
            contextlib.nullcontext() if last else self.model.no_sync()
        )
        return context


class Fsdp2(Averaged):
    """Every block and the whole model sharded by torch's ``fully_shard``."""

    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (WORLD,))
        for block in blocks_of(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        super().__init__(cell, model)

    def backward(self, loss: torch.Tensor) -> None:
        (loss / self.cell.accumulation).backward()

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        sharded: Any = parameter.grad
        return None if sharded is None else sharded.full_tensor()


def deepspeed_config(cell: Cell) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": int(cell.engine[-1])}
    if cell.engine == "zero3":
        # Everything is partitioned: by default tensors this small would stay whole.
        zero["stage3_param_persistence_threshold"] = 0
    arguments = optimizer_arguments(cell)
    arguments |= {"torch_adam": True} if cell.optimizer == "adamw" else {}
    low = {} if cell.dtype == "float32" else {PRECISIONS[cell.dtype]: {"enabled": True}}
    return {
        "train_micro_batch_size_per_gpu": 1,
        **({"gradient_accumulation_steps": cell.accumulation} if cell.compared else {}),
        "optimizer": {"type": OPTIMIZERS[cell.optimizer], "params": arguments},
        "zero_optimization": {**zero, **cell.zero},
        "gradient_clipping": 0.0,  # some releases clip at 1 when told nothing
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
        **low,
        **cell.config,
    }


PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


class DeepSpeed:
    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        deepspeed.init_distributed(dist_backend=BACKENDS[cell.device], auto_mpi_discovery=False)
        if cell.engine == "zero3" and cell.device == "cpu":
            wait_for_every_collective()
        if cell.device == "cpu":
            answer_for_cpu()
        self.cell = cell
        config = deepspeed_config(cell)
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.engine = deepspeed.initialize(model=model, model_parameters=trainable, config=config)[0]

    def forward(self, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = self.engine(**batch).loss
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        if self.cell.scenario == "past-the-engine":
            loss.backward()
        elif self.cell.scenario == "no_sync":
            # Within it the engine divides nothing. HF Trainer divides by itself, everywhere.
            self.engine.backward(loss / self.cell.accumulation, scale_wrt_gas=False)
        else:
            self.engine.backward(loss)

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        gradient: torch.Tensor | None = deepspeed.utils.safe_get_full_grad(parameter)
        return gradient

    def gathered(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        if last or self.cell.scenario != "no_sync":
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = self.engine.no_sync()
        return context

    def step(self, last: bool = True) -> None:
        self.engine.step()

    def whole(self) -> torch.nn.Module:
        whole: torch.nn.Module = self.engine.module
        return whole

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder))

    def load(self, folder: Path) -> None:
        self.engine.load_checkpoint(str(folder))


def answer_for_cpu() -> None:
    """What DeepSpeed asks of a GPU and takes a CPU to lack."""
    # torch computes in half precision there; an instruction for it few processors have.
    importlib.import_module("deepspeed.accelerator").get_accelerator().is_fp16_supported = lambda: True
    # It finds gradients by the names of types, which are others on a CPU, and reduced none; ended by 0.19.8.
    flat = importlib.import_module("deepspeed.runtime.zero.stage_1_and_2")
    vars(flat)["split_half_float_double"] = by_dtype


def by_dtype(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Parts of one dtype each, for a reduction each."""
    dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
    return [[tensor for tensor in tensors if tensor.dtype == dtype] for dtype in dtypes]


BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
ENGINES: dict[str, Callable[[Cell, torch.nn.Module], Engine]] = {
    "none": Averaged,
    "plain": Plain,
    "plain_zeros": Plain,
    "ddp": Ddp,
    "ddp_unused": Ddp,
    "fsdp1": Fsdp1,
    "fsdp2": Fsdp2,
    "zero1": DeepSpeed,
    "zero2": DeepSpeed,
    "zero3": DeepSpeed,
}


def preload_engine() -> None:
    """What DeepSpeed imports as it makes an engine, torch's compiler with it: once, before the fork."""
    if deepspeed is None:
        return
    # Collectives over shared memory, compiled for inference on a CPU; nothing here needs them.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]
    for name in IMPORTED_BY_AN_ENGINE:
        with contextlib.suppress(Exception):  # a rank that needs it will say why it cannot be had
            importlib.import_module(name)


def preload_models(folders: Iterable[Path]) -> None:
    """The modules that checkpoints are loaded with, imported once, before the fork."""
    with contextlib.suppress(Exception):  # as above
        importlib.import_module("PIL.Image").preinit()
    for folder in folders:
        for imports in (class_of, transformers.AutoProcessor.from_pretrained):
            with contextlib.suppress(Exception):
                imports(folder)


IMPORTED_BY_AN_ENGINE = (
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.module_inject.auto_ep_config",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
)


# --- results ------------------------------------------------------------------------------------


def gradients(engine: Engine, model: torch.nn.Module) -> Gradients:
    """The full gradient of every trainable parameter; a parameter without one is left out."""
    found = {}
    for name, parameter in trainable(model):
        gradient = engine.gradient(parameter)
        if gradient is not None:
            found[name] = gradient.detach().float().cpu().clone()
    return found


def parameters(model: torch.nn.Module) -> Gradients:
    """The full value of every trainable parameter."""
    return {name: value_of(p).detach().float().cpu().clone() for name, p in trainable(model)}


def trainable(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """By the names that the model gave them."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name.replace(Fsdp1.INSIDE, ""), parameter


def value_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The whole of a parameter, its master copy where DeepSpeed keeps one."""
    # Under ZeRO-3 gathering the parameter itself would have to free it. In float32 it is its own master copy.
    low = hasattr(parameter, "_hp_mapping") and parameter.dtype != torch.float32
    if hasattr(parameter, "ds_id") or low:
        value: torch.Tensor = deepspeed.utils.safe_get_full_fp32_param(parameter)
        return value
    sharded: Any = parameter
    return sharded.full_tensor() if hasattr(sharded, "full_tensor") else parameter


def digest(model: torch.nn.Module) -> str:
    """A hash of all trainable values: equal on two ranks only when every bit is."""
    total = hashlib.sha256()
    for name, parameter in trainable(model):
        # Under ZeRO-3 the master copy: gathering the parameter itself would have to free it.
        partitioned = hasattr(parameter, "ds_id")
        value: Any = deepspeed.utils.safe_get_full_fp32_param(parameter) if partitioned else parameter
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        # A copy: FSDP1 frees what it gathered, which numpy would still hold.
        total.update(name.encode() + value.detach().float().cpu().clone().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


@contextlib.contextmanager
def process_group(rank: int, port: int, world: int = WORLD, device: str = "cpu") -> Iterator[None]:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if device != "cpu":
        torch.cuda.set_device(rank)
    dist.init_process_group(BACKENDS[device], timeout=timedelta(seconds=stretched(60)))
    yield
    # Not after an error: the other rank learns of it when this process ends. axolotl does it itself.
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _log_to(path: Path) -> None:
    """Send everything this process prints, from C++ too, to ``path``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
