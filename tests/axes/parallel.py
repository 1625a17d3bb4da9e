"""What two ranks or four share beside data: one function a kind, from a model to what it is trained by."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist

from vlmpatch_lab import engines
from vlmpatch_lab.cell import Cell
from vlmpatch_lab.engines import DeepSpeed, Engine
from vlmpatch_lab.loading import TOWERS
from vlmpatch_lab.recording import Gradients

SCALE = 64.0  # of a loss in half precision, as DeepSpeed's row begins with
TOGETHER = 2  # ranks that hold parts of one sequence, layer or set of experts


def alone(cell: Cell, model: Any) -> Engine:
    return engines.ENGINES[cell.engine](cell, model)


def scaled(cell: Cell, model: Any) -> Engine:
    """With torch's scaler of losses, as a script in half precision has it."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    engine: Any = alone(cell, model)
    made = ShardedGradScaler if cell.engine == "fsdp1" else torch.amp.GradScaler
    scaler, backward = made("cpu", init_scale=SCALE), engine.backward

    def step(last: bool = True) -> None:
        if last:
            scaler.step(engine.optimizer)
            scaler.update()
            engine.optimizer.zero_grad()

    engine.backward = lambda loss: backward(scaler.scale(loss))
    engine.step = step
    return cast("Engine", engine)


def compiled(cell: Cell, model: Any) -> Engine:
    """What the script calls, compiled; DDP searches, as HF Trainer's does around an adapter."""
    if cell.engine.startswith("zero"):
        made: Any = alone(cell, model)
        made.engine.compile(backend="aot_eager")
        return cast("Engine", made)
    searching = dataclasses.replace(cell, engine="ddp_unused") if cell.engine == "ddp" else cell
    engine: Any = alone(searching, model)
    called = torch.compile(engine.model, backend="aot_eager")
    engine.outputs = lambda batch: called(**batch)
    return cast("Engine", engine)


def groups(cell: Cell, model: Any) -> Engine:
    """Trained at two rates: what sees slower than what speaks."""
    rate = engines.optimizer_arguments(cell)["lr"]

    def by_rate(trained: Any) -> list[dict[str, Any]]:
        parts: tuple[list[Any], list[Any]] = ([], [])
        for name, parameter in trained.named_parameters():
            parts[any(tower in name for tower in TOWERS)].append(parameter)
        return [{"params": part, "lr": lr} for part, lr in zip(parts, (rate, rate / 5), strict=True)]

    if cell.engine.startswith("zero"):
        return DeepSpeed(cell, model, model_parameters=by_rate(model))
    engine: Any = alone(cell, model)
    engine.optimizer = type(engine.optimizer)(by_rate(engine.model), **engines.optimizer_arguments(cell))
    return cast("Engine", engine)


def ulysses(cell: Cell, model: Any) -> Engine:
    """Each rank has a part of a sequence, and within attention a part of the heads."""
    engines.begin_deepspeed(cell)
    ulysses_sp = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
    groups = ulysses_sp.UlyssesSPAttentionHF.register_with_transformers(
        model, "sdpa", sequence_parallel_size=TOGETHER, micro_batch_size=1
    )
    return DeepSpeed(cell, model, mpu=groups)


def tensor(cell: Cell, model: Any) -> Engine:
    """A part of each layer on every rank of a pair, torch's ``parallelize_module``; FSDP2 over the pairs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (cell.world // TOGETHER, TOGETHER), mesh_dim_names=("data", "tensor"))
    by_name = {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ColwiseParallel()),
        **dict.fromkeys(("o_proj", "down_proj"), RowwiseParallel()),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    plan = {f"*{name}": style for name, style in by_name.items()}
    parallelize_module(model, mesh["tensor"], plan)
    return engines.Fsdp2(cell, model, mesh["data"])


class AutoTp(DeepSpeed):
    """DeepSpeed's tensor parallelism."""

    def __init__(self, cell: Cell, model: Any) -> None:
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        engines.begin_deepspeed(cell)
        importlib.import_module("deepspeed").tp_model_init(model, TOGETHER, torch.float32)
        super().__init__(cell, model)


def joined(engine: Any, found: Gradients) -> Gradients:
    """The parts of all ranks put together."""
    return {name: _joined(part, engine.shapes[name]) for name, part in found.items()}


def _joined(part: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    if part.shape == shape:
        return part
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part.contiguous())
    (along,) = (place for place, size in enumerate(shape) if part.shape[place] != size)
    return torch.cat(parts, along)


class Sparse(torch.nn.Module):  # type: ignore[misc]
    """DeepSpeed's layer of experts, each a copy of what stood in its place."""

    def __init__(self, dense: torch.nn.Module, hidden: int) -> None:
        super().__init__()
        layer = importlib.import_module("deepspeed.moe.layer")
        ranks = dist.get_world_size()
        self.moe = layer.MoE(hidden, dense, TOGETHER, ranks, drop_tokens=False, use_rts=False)
        if ranks == 1:  # an engine does it by itself
            self.moe.set_deepspeed_parallelism()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.moe(x)[0]
        return out


def with_experts(model: Any) -> Any:
    """``model`` with two experts in every block, spread over all ranks."""
    importlib.import_module("deepspeed").init_distributed("gloo", auto_mpi_discovery=False)
    torch.manual_seed(1)
    for layer in model.model.layers:
        layer.mlp = Sparse(layer.mlp, model.config.hidden_size)
    return model


def experts(cell: Cell, model: Any) -> Engine:
    """Every rank has one of the experts."""
    utils = importlib.import_module("deepspeed.moe.utils")
    everything = {"params": [*model.parameters()], "name": "all"}
    groups = utils.split_params_into_different_moe_groups_for_optimizer(everything)
    return DeepSpeed(cell, model, model_parameters=groups)


def of_every_rank(engine: Engine, found: Gradients) -> Gradients:
    """Experts by the numbers that they have among all, where each rank calls its own the first."""
    told: list[Gradients] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(told, {name: value for name, value in found.items() if EXPERT in name})
    spread = {
        name.replace(EXPERT, EXPERT.replace("0", str(rank))): value
        for rank, theirs in enumerate(told)
        for name, value in theirs.items()
    }
    return {**found, **spread}


EXPERT = ".deepspeed_experts.0."

PARALLEL: dict[str, Callable[[Cell, Any], Engine]] = {
    "": alone,
    "scaled": scaled,
    "compiled": compiled,
    "groups": groups,
    "ulysses": ulysses,
    "tensor": tensor,
    "autotp": AutoTp,
    "experts": experts,
}

MEASURED = ("groups",)  # what one process does, too
# What a rank knows of its own part alone, made the whole.
WHOLE: dict[str, Callable[[Any, Gradients], Gradients]] = {"autotp": joined, "experts": of_every_rank}
