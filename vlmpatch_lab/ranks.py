"""What one rank of a cell does: build, wrap, forward, backward, record. Imports the whole stack."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import deepspeed
import deepspeed.comm
import peft
import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel

from vlmpatch_lab.cell import WORLD, Cell

Batch = dict[str, torch.Tensor]
Gradients = dict[str, torch.Tensor]
frameworks: Any = None  # the module that trains the cells whose ``trainer`` is set
IGNORED = -100  # the label that counts for nothing


def main(cell: Cell, model: str, folder: Path, rank: int, port: int) -> None:
    """Entry of a forked rank; writes ``rank<N>.json``, ``rank<N>.pt`` and ``rank<N>.log``."""
    _log_to(folder / f"rank{rank}.log")
    report: dict[str, Any] = {"ok": False}
    try:
        with process_group(rank, port):
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
    batches = make_batches(cell, folder, dist.get_rank())
    losses = []
    for step in range(cell.steps + 1):
        parts = [engine.forward(batch) for batch in batches]
        loss = torch.stack(parts).sum()
        engine.backward(loss)
        losses.append(loss.item())
        if step == 0:
            torch.save(gradients(engine, model), out)
        if cell.steps:
            engine.step()
    return {"losses": losses, "digest": digest(model) if cell.steps else None}


def states() -> dict[str, str]:
    """What became of every patch in this rank; empty in a bare run."""
    vlmpatch = sys.modules.get("vlmpatch")
    return {name: s.state.value for name, s in vlmpatch.status().items()} if vlmpatch else {}


def load(cell: Cell, folder: Path) -> torch.nn.Module:
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    remote = hasattr(config, "auto_map")
    known = transformers.AutoModel if remote else getattr(transformers, config.architectures[0])
    model = known.from_pretrained(folder, torch_dtype=torch.float32, trust_remote_code=remote)
    # Only then: transformers 5 finds what to rename in a checkpoint by the class it is asked for.
    model.__class__ = VARIANTS[cell.variant](type(model))
    model.config.use_cache = False
    model.train()
    loaded: torch.nn.Module = model
    return loaded


def prepare(cell: Cell, folder: Path) -> Any:
    """The model as a training script would have it just before it is handed to the engine."""
    model: Any = load(cell, folder)
    if cell.checkpointing == "kbit":
        model.is_loaded_in_8bit = True  # as quantised loading leaves it; the weights stay float32
        model = peft.prepare_model_for_kbit_training(model)
    lora = cell.tuning != "full"
    if lora:
        saved = ["merger"] if cell.tuning == "lora_saved" else None
        model = add_lora(model, vision=cell.tuning != "lora_llm", saved=saved)
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


def add_lora(model: torch.nn.Module, vision: bool, saved: list[str] | None = None) -> Any:
    """LoRA on every linear layer inside a numbered block: those are what checkpointing recomputes."""
    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and any(part.isdigit() for part in name.split(".")[:-1])
        and "merger" not in name
        and (vision or not any(tower in name for tower in ("visual", "vision")))
    ]
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, modules_to_save=saved)
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
    "override": override,
    "copied": copied,
}


# --- data ---------------------------------------------------------------------------------------


def make_batches(cell: Cell, folder: Path, rank: int) -> list[Batch]:
    """One row of the checkpoint's own data a forward: no two ranks or forwards see the same."""
    ready = folder / "batches.pt"
    if ready.exists():
        batches: list[Batch] = torch.load(ready)
        return batches[rank * cell.forwards : (rank + 1) * cell.forwards]
    rows = [json.loads(line) for line in (folder / "data" / "sft.jsonl").read_text().splitlines()]
    processor = transformers.AutoProcessor.from_pretrained(folder)
    return [encode(processor, rows[rank * cell.forwards + turn]) for turn in range(cell.forwards)]


def encode(processor: Any, row: dict[str, Any]) -> Batch:
    from PIL import Image

    turns = []
    for message in row["messages"]:
        text = message["content"].removeprefix("<image>")
        image = [{"type": "image"}] if text != message["content"] else []
        turns.append({"role": message["role"], "content": [*image, {"type": "text", "text": text}]})
    images = [Image.open(path).convert("RGB") for path in row["images"]]
    prompt = processor.apply_chat_template(turns, tokenize=False)
    batch: Batch = dict(processor(text=[prompt], images=images, return_tensors="pt"))
    labels = batch["input_ids"].clone()
    special = torch.tensor(processor.tokenizer.all_special_ids)
    labels[torch.isin(labels, special)] = IGNORED
    return {**batch, "labels": labels}


# --- engines ------------------------------------------------------------------------------------


class Engine(Protocol):
    def forward(self, batch: Batch) -> torch.Tensor: ...

    def backward(self, loss: torch.Tensor) -> None: ...

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None: ...

    def step(self) -> None: ...


class Averaged:
    """No engine: what data parallel training is by definition, and the measure of every engine."""

    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        self.model = model
        self.trainable = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trainable, lr=1e-3)

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

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class Ddp(Averaged):
    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        super().__init__(cell, model)
        unused = cell.engine == "ddp_unused"
        self.model = DistributedDataParallel(model, find_unused_parameters=unused)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


class Fsdp2(Averaged):
    """Every block and the whole model sharded by torch's ``fully_shard``."""

    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (WORLD,))
        for name, module in model.named_modules():
            if name.rpartition(".")[2].isdigit() and any(True for _ in module.parameters()):
                fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
        super().__init__(cell, model)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        sharded: Any = parameter.grad
        return None if sharded is None else sharded.full_tensor()


def deepspeed_config(cell: Cell) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": int(cell.engine[-1])}
    if cell.engine == "zero3":
        # Everything is partitioned: by default tensors this small would stay whole.
        zero["stage3_param_persistence_threshold"] = 0
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {**zero, **cell.zero},
        "steps_per_print": 1_000_000,
    }


class DeepSpeed:
    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
        if cell.engine == "zero3":
            wait_for_every_collective()
        config = deepspeed_config(cell)
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.engine = deepspeed.initialize(model=model, model_parameters=trainable, config=config)[0]

    def forward(self, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = self.engine(**batch).loss
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        self.engine.backward(loss)

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        gradient: torch.Tensor | None = deepspeed.utils.safe_get_full_grad(parameter)
        return gradient

    def step(self) -> None:
        self.engine.step()


ENGINES: dict[str, Callable[[Cell, torch.nn.Module], Engine]] = {
    "none": Averaged,
    "ddp": Ddp,
    "ddp_unused": Ddp,
    "fsdp2": Fsdp2,
    "zero1": DeepSpeed,
    "zero2": DeepSpeed,
    "zero3": DeepSpeed,
}


def load_extension() -> None:
    """Load what DeepSpeed compiles, before the fork, so that no rank has to look for it."""
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    made = Path(os.environ["TORCH_EXTENSIONS_DIR"], builder.name)
    loaded = getattr(type(builder), "_loaded_ops", None)
    if loaded is not None and (made.parent / "complete").exists() and not (made / "lock").exists():
        # Straight from where warm_up left it: asking ninja first makes it compile everything again
        # when only the spelling of the interpreter's path is another.
        from torch.utils.cpp_extension import _import_module_from_library

        loaded[builder.name] = _import_module_from_library(builder.name, str(made), True)
    builder.load(verbose=False)


def wait_for_every_collective() -> None:
    """Make asynchronous collectives wait before they return.

    ZeRO-3 waits for the last of several gathers, which one CUDA stream makes enough; over gloo it
    is a data race in DeepSpeed that has nothing to do with what is tested here.
    """
    names = ("all_gather", "all_gather_into_tensor", "all_reduce", "broadcast", "reduce")
    for name in (*names, "reduce_scatter", "reduce_scatter_tensor", "all_to_all_single"):
        setattr(dist, name, _waiting(getattr(dist, name)))


def _waiting(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        work = collective(*args, **kwargs)
        if work is not None:
            work.wait()
        return work

    return call


# --- results ------------------------------------------------------------------------------------


def gradients(engine: Engine, model: torch.nn.Module) -> Gradients:
    """The full gradient of every trainable parameter; a parameter without one is left out."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gradient = engine.gradient(parameter)
            if gradient is not None:
                found[name] = gradient.detach().float().clone()
    return found


def digest(model: torch.nn.Module) -> str:
    """A hash of all trainable values: equal on two ranks only when every bit is."""
    total = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            # Under ZeRO-3 the master copy: gathering the parameter itself would have to free it.
            partitioned = hasattr(parameter, "ds_id")
            value = deepspeed.utils.safe_get_full_fp32_param(parameter) if partitioned else parameter
            total.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


@contextlib.contextmanager
def process_group(rank: int, port: int) -> Iterator[None]:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
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
