"""What a model is trained by: torch's DDP and FSDP, DeepSpeed, or nothing but averaged gradients."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from vlmpatch_lab.cell import PAST_THE_ENGINE, Cell
from vlmpatch_lab.collectives import wait_for_every_collective
from vlmpatch_lab.loading import forget
from vlmpatch_lab.samples import Batch

try:  # cells that need what is missing here fail, the others run
    import deepspeed
    import deepspeed.comm
except ImportError:
    deepspeed = None


class Engine(Protocol):
    def outputs(self, batch: Batch) -> Any: ...

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


class Averaged:
    """No engine: what data parallel training is by definition, and the measure of every engine."""

    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        self.cell = cell
        self.model = model
        self.trainable = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(cell, self.trainable)

    def outputs(self, batch: Batch) -> Any:
        """All that the model puts out."""
        return self.model(**batch)

    def forward(self, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = self.outputs(batch).loss
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        for parameter in self.trainable:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.cell.world

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
            self.clip(clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def clip(self, most: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.trainable, most)

    def finite(self) -> bool:
        """Whether a loss scaler would let the optimizer take this step."""
        found = (parameter.grad for parameter in self.trainable if parameter.grad is not None)
        return all(bool(gradient.isfinite().all()) for gradient in found)

    def whole(self) -> torch.nn.Module:
        return self.model

    def save(self, folder: Path) -> None:
        """Model and optimizer, as torch's own checkpoints have them whatever they are wrapped in."""
        from torch.distributed import checkpoint

        checkpoint.save(self.state(), checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = self.state()
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


class Plain(Averaged):
    """One process that sees the samples of all ranks: the measure of cells that compare steps."""

    def __init__(self, cell: Cell, model: torch.nn.Module) -> None:
        super().__init__(cell, model)
        self.parts = cell.world * cell.accumulation

    def outputs(self, batch: Batch) -> Any:
        forget(self.model)
        return super().outputs(batch)

    def backward(self, loss: torch.Tensor) -> None:
        if loss.requires_grad:  # a text, where nothing but the projector is trained, adds nothing
            (loss / self.parts).backward()

    def step(self, last: bool = True) -> None:
        if last and self.cell.engine == "plain_zeros":
            for parameter in self.trainable:
                if parameter.grad is None and parameter.requires_grad:
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

    def clip(self, most: float) -> None:
        self.model.clip_grad_norm_(most)  # a rank has a part of each gradient

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

    def __init__(self, cell: Cell, model: torch.nn.Module, mesh: Any = None) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = mesh or init_device_mesh("cpu", (cell.world,))
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


def begin_deepspeed(cell: Cell) -> None:
    """What comes before all that asks DeepSpeed for groups of ranks."""
    deepspeed.init_distributed(dist_backend=BACKENDS[cell.device], auto_mpi_discovery=False)
    if cell.engine == "zero3" and cell.device == "cpu":
        wait_for_every_collective()
    if cell.device == "cpu":
        answer_for_cpu()


class DeepSpeed:
    def __init__(self, cell: Cell, model: torch.nn.Module, **said: Any) -> None:
        begin_deepspeed(cell)
        self.cell = cell
        said.setdefault("model_parameters", [p for p in model.parameters() if p.requires_grad])
        self.engine = deepspeed.initialize(model=model, config=deepspeed_config(cell), **said)[0]
        self.backwards = 0

    def outputs(self, batch: Batch) -> Any:
        return self.engine(**batch)

    def forward(self, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = self.outputs(batch).loss
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        past = PAST_THE_ENGINE.get(self.cell.scenario, (False, False))[self.backwards % 2]
        self.backwards += 1
        if past:
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
    # It finds gradients by the names of types, which are others on a CPU, and reduced none; fixed in 0.19.8.
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


IMPORTED_BY_AN_ENGINE = (
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.module_inject.auto_ep_config",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
)
