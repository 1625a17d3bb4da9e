"""What ranks do that train together, or do not; each case is right without vlmpatch.

A case returns what may not change: losses, and digests of weights. Its doc says what other libraries would
have to wait for, and what must not wait.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import deepspeed
import torch
import torch.distributed as dist
import transformers
from deepspeed.utils import groups
from torch.nn.parallel import DistributedDataParallel

from bench import at_size_ranks as at_size
from vlmpatch_lab import models

Numbers = list[Any]
Case = Callable[[int, Path], Numbers]


class Known(NamedTuple):
    """A case and how many ranks it takes.

    ``meets``: they have met before it begins. ``bare``: it is right without vlmpatch.
    """

    run: Case
    world: int
    meets: bool
    bare: bool


CASES: dict[str, Known] = {}


def case(
    *worlds: int, meets: bool = True, bare: bool = True, **variants: Sequence[Any]
) -> Callable[[Any], Any]:
    """Register a case for each number of ranks, and each value of its one other argument."""

    def register(function: Any) -> Any:
        name = function.__name__.replace("_", "-")
        for world in worlds:
            suffix = f"-{world}" if len(worlds) > 1 else ""
            for argument, values in variants.items() or [("", ("",))]:
                for value in values:
                    run = _with(function, argument, value) if argument else function
                    CASES[f"{name}{f'-{value}' if argument else ''}{suffix}"] = Known(run, world, meets, bare)
        return function

    return register


def _with(function: Any, argument: str, value: Any) -> Case:
    def run(rank: int, folder: Path) -> Numbers:
        found: Numbers = function(rank, folder, **{argument: value})
        return found

    return run


# --- what is trained -------------------------------------------------------------------------------


def vlm() -> Any:
    """A Qwen2-VL; its forward takes images and videos, so that ranks under ZeRO-3 have to agree."""
    torch.manual_seed(0)
    return models.qwen("qwen2_vl", "tiny").train()


def batch(seed: int, image: bool = True) -> dict[str, Any]:
    row = models.batch("tiny", 8, seed)
    if image:
        return row
    words = row["input_ids"] >= 10
    return {name: row[name][words][None] for name in ("input_ids", "attention_mask", "labels")}


class Net(torch.nn.Module):  # type: ignore[misc]
    """Layers of different sizes: where they are equal, different gathers go through unnoticed."""

    def __init__(self, *wide: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        pairs = [(torch.nn.Linear(8, each), torch.nn.Linear(each, 8)) for each in wide or (8, 16, 24)]
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(*pair) for pair in pairs)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def values(rank: int, step: int = 0) -> Any:
    return torch.randn(2, 8, generator=torch.Generator().manual_seed(100 * rank + step))


TRAINED = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_force_ds_cpu_optimizer": False,
    "gradient_clipping": 0.0,
    "steps_per_print": 1_000_000,
}
PARTITIONED = {"stage3_param_persistence_threshold": 0}  # by default tensors this small would stay whole
KEPT = {"stage3_param_persistence_threshold": 10**9, "stage3_model_persistence_threshold": 10**12}


def engine(model: Any, stage: int, mpu: Any = None, **zero: Any) -> Any:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {
            "stage": stage,
            **({"stage3_param_persistence_threshold": 0} if stage == 3 else {}),
            **zero,
        },
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
        "steps_per_print": 1_000_000,
    }
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    more = {} if mpu is None else {"mpu": mpu}
    trained = [p for p in model.parameters() if p.requires_grad]
    return deepspeed.initialize(model=model, model_parameters=trained, config=config, **more)[0]


def steps(trained: Any, inputs: Sequence[Any]) -> Numbers:
    """A step of an engine for each of ``inputs``; the losses."""
    losses = []
    for each in inputs:
        loss = trained(**each).loss if isinstance(each, dict) else trained(each).square().mean()
        trained.backward(loss)
        trained.step()
        losses.append(loss.item())
    return losses


def weights(model: Any) -> Numbers:
    """A digest of them, gathered by the ranks that hold them, and how large they are."""
    kept = list(model.parameters())
    with deepspeed.zero.GatheredParameters(kept, enabled=any(hasattr(p, "ds_id") for p in kept)):
        return [digest(model), sum(p.detach().double().abs().sum().item() for p in kept)]


def digest(model: Any) -> str:
    held = hashlib.sha256()
    for parameter in model.parameters():
        held.update(parameter.detach().numpy().tobytes())
    return held.hexdigest()[:16]


class Mesh:
    """Ranks in data-parallel groups, and in model groups across them, as Megatron tells DeepSpeed of them."""

    def __init__(self, data: Sequence[Sequence[int]], across: bool = True) -> None:
        here = dist.get_rank()
        model = [*zip(*data, strict=True)] if across else [(rank,) for rank in range(dist.get_world_size())]
        made = {tuple(ranks): dist.new_group(list(ranks)) for ranks in [*data, *model]}
        self.data = next(made[tuple(ranks)] for ranks in data if here in ranks)
        self.model = next(made[tuple(ranks)] for ranks in model if here in ranks)

    def get_data_parallel_group(self) -> Any:
        return self.data

    def get_model_parallel_group(self) -> Any:
        return self.model

    def get_data_parallel_rank(self) -> int:
        return int(dist.get_rank(self.data))

    def get_data_parallel_world_size(self) -> int:
        return int(dist.get_world_size(self.data))

    def get_model_parallel_rank(self) -> int:
        return int(dist.get_rank(self.model))

    def get_model_parallel_world_size(self) -> int:
        return int(dist.get_world_size(self.model))

    get_slice_parallel_rank = get_model_parallel_rank
    get_slice_parallel_world_size = get_model_parallel_world_size


def by_hand(model: Any, inputs: Sequence[Any], average: bool = False, called: Any = None) -> Numbers:
    """Steps of an optimizer of torch's own; ``called`` is what wraps the model."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for each in inputs:
        found = (called or model)(**each) if isinstance(each, dict) else (called or model)(each)
        loss = found.loss if isinstance(each, dict) else found.square().mean()
        loss.backward()
        if average:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# --- ranks that do not train together --------------------------------------------------------------


@case(2, 3)
def ensemble(rank: int, folder: Path) -> Numbers:
    """Each rank its own model without a wrapper, one of them on text, and not for equally many steps."""
    model = vlm()
    losses = by_hand(model, [batch(rank + step, image=rank != 1) for step in range(2 + rank)])
    return [losses, weights(model)]


@case(2)
def averaged_by_hand(rank: int, folder: Path) -> Numbers:
    """Gradients averaged by the script; what a rank lacks it fills in itself."""
    model = vlm()
    return [by_hand(model, [batch(rank, image=rank == 0)] * 2, average=True), weights(model)]


@case(3)
def sub_world_ddp(rank: int, folder: Path) -> Numbers:
    """Ranks 0 and 1 train together, rank 2 something of its own, on text, and longer."""
    model, group = vlm(), dist.new_group([0, 1])
    if rank == 2:
        return [by_hand(model, [batch(step, image=False) for step in range(4)]), weights(model)]
    ddp = DistributedDataParallel(model, process_group=group, find_unused_parameters=True)
    inputs = [batch(rank + step, image=rank == step % 2) for step in range(2)]
    return [by_hand(model, inputs, called=ddp), weights(model)]


@case(2, 4)
def two_ddp(rank: int, folder: Path) -> Numbers:
    """Two models over the same ranks, by turns; a text here and there."""
    first, second = vlm(), vlm()
    wrapped = [DistributedDataParallel(model, find_unused_parameters=True) for model in (first, second)]
    found = []
    for step in range(2):
        found.append(by_hand(first, [batch(rank, image=rank > 0)], called=wrapped[0]))
        found.append(by_hand(second, [batch(rank + step, image=step > 0)], called=wrapped[1]))
    return [found, weights(first), weights(second)]


# --- engines ---------------------------------------------------------------------------------------


@case(2, 3, stage=(1, 2, 3))
def two_engines(rank: int, folder: Path, stage: int) -> Numbers:
    """Two engines over the same ranks, one of which steps twice as often."""
    first, second = engine(vlm(), stage), engine(Net(), stage)
    found = []
    for step in range(2):
        found += [steps(first, [batch(rank + step)]), steps(second, [values(rank, step)] * 2)]
    return [found, weights(first.module), weights(second.module)]


@case(4, stage=(1, 2, 3))
def engines_of_parts(rank: int, folder: Path, stage: int) -> Numbers:
    """Two engines, each of a part of the world, that do not take equally many steps."""
    trained = engine(vlm(), stage, mpu=Mesh([[0, 1], [2, 3]], across=False))
    found = steps(trained, [batch(rank + step) for step in range(2 + rank // 2)])
    if rank < 2:
        trained.module.eval()
        with torch.no_grad():
            found.append(trained(**batch(rank)).loss.item())
    return [found, weights(trained.module)]


@case(4, stage=(1, 2, 3))
def tensor_parallel(rank: int, folder: Path, stage: int) -> Numbers:
    """Ranks 0 and 1 hold one model, 2 and 3 the other: data-parallel groups are 0, 2 and 1, 3."""
    trained = engine(vlm(), stage, mpu=Mesh([[0, 2], [1, 3]]))
    return [steps(trained, [batch(rank // 2 + step) for step in range(2)]), weights(trained.module)]


@case(4, stage=(1, 2))  # ZeRO-3 compares modules over the whole world
def pipeline(rank: int, folder: Path, stage: int) -> Numbers:
    """Ranks 0 and 1 hold the first part, 2 and 3 the second; activations and gradients are sent."""
    trained = engine(Net(8 * (1 + rank // 2)), stage, mpu=Mesh([[0, 1], [2, 3]]))
    found = []
    for step in range(3):
        if rank < 2:
            out = trained(values(rank, step))
            dist.send(out.detach(), rank + 2)
            dist.recv(gradient := torch.empty_like(out), rank + 2)
            trained.backward((out * gradient).sum())
        else:
            dist.recv(got := torch.empty(2, 8), rank - 2)
            loss = trained(got.requires_grad_()).square().mean()
            trained.backward(loss)
            dist.send(got.grad if got.grad is not None else torch.zeros_like(got), rank - 2)
            found.append(loss.item())
        trained.step()
    return [found, weights(trained.module)]


@case(4, bare=False, stage=(1, 2))
def backwards_dropped(rank: int, folder: Path, stage: int) -> Numbers:
    """A backward whose gradients the script drops, and another: ranks agree on what the first one left."""
    trained = engine(Net(), stage, mpu=Mesh([[0, 2], [1, 3]], across=False))
    found = []
    for step in range(2):
        trained.backward(trained(values(rank, step)).square().mean())
        trained.optimizer.zero_grad()
        found += steps(trained, [values(rank, step)])
    return [found, weights(trained.module)]


@case(2)
def experts_under_fsdp2(rank: int, folder: Path) -> Numbers:
    """Every rank sends its tokens to the same experts; ranks still have to say so."""
    model = _experts(dist.device_mesh.init_device_mesh("cpu", (2,)))
    return by_hand(model, [TOKENS] * 2)


@case(4)
def experts_in_replicas(rank: int, folder: Path) -> Numbers:
    """Sharded over two ranks and replicated over two, with a longer window in one of the replicas."""
    model = _experts(dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    found = []
    for last in [*[False] * (1 + rank // 2), True]:
        model.set_requires_all_reduce(last)
        loss = model(**TOKENS).loss
        loss.backward()
        found.append(loss.item())
    return [found, *(p.grad.full_tensor().sum().item() for p in model.parameters() if p.grad is not None)]


TOKENS = {"input_ids": torch.arange(12)[None], "labels": torch.arange(12)[None]}


def _experts(mesh: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64}
    config = transformers.Qwen3MoeConfig(**sizes, num_experts=4, num_experts_per_tok=1, use_cache=False)
    model = transformers.Qwen3MoeForCausalLM(config)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@case(4, bare=False)
def partitioned_in_a_part(rank: int, folder: Path) -> Numbers:
    """``zero.Init`` in a part of the world: it loads, calls and saves, and the rest never comes."""
    part = dist.new_group([0, 1])
    whole = Net()
    with torch.no_grad():
        found = [digest(whole), whole(values(0)).sum().item()]
    if rank > 1:
        return found
    config = {**TRAINED, "zero_optimization": {"stage": 3, **PARTITIONED}}
    with deepspeed.zero.Init(data_parallel_group=part, config_dict_or_path=config):
        model = Net(8, 16, 24)
    model.load_state_dict(whole.state_dict())
    with torch.no_grad():
        same = [weights(model)[0], model(values(0)).sum().item()]
    assert same == found, (same, found)
    return found


# --- evaluation on one rank ------------------------------------------------------------------------


def evaluate(model: Any, *images: bool) -> Numbers:
    model.eval()
    with torch.no_grad():
        found = [model(**batch(7, image=image)).loss.item() for image in images or (True, False)]
    model.train()
    return found


@case(2, 3)
def evaluated_where_gathered(rank: int, folder: Path) -> Numbers:
    """All ranks gather, one evaluates: there is nothing left to gather, so nobody waits."""
    trained = engine(vlm(), 3)
    found = steps(trained, [batch(rank)])
    with deepspeed.zero.GatheredParameters(list(trained.module.parameters())):
        found += evaluate(trained.module, True) if rank == 0 else []
    return [found, steps(trained, [batch(rank)]), weights(trained.module)]


@case(2, stage=(0, 1, 2))
def evaluated_on_one_rank(rank: int, folder: Path, stage: int) -> Numbers:
    """Weights are whole everywhere."""
    trained = engine(vlm(), stage)
    found = steps(trained, [batch(rank)])
    found += evaluate(trained.module) if rank == 0 else []
    return [found, steps(trained, [batch(rank)]), weights(trained.module)]


@case(2)
def evaluated_where_persistent(rank: int, folder: Path) -> Numbers:
    """ZeRO-3 keeps small parameters whole after their first gather, here all."""
    trained = engine(
        vlm(), 3, stage3_param_persistence_threshold=10**9, stage3_model_persistence_threshold=10**12
    )
    found = steps(trained, [batch(rank)])
    found += evaluate(trained.module, True) if rank == 0 else []
    return [found, steps(trained, [batch(rank)]), weights(trained.module)]


@case(2)
def evaluated_under_ddp(rank: int, folder: Path) -> Numbers:
    """On the model that DDP has."""
    model = vlm()
    ddp = DistributedDataParallel(model)
    found = by_hand(model, [batch(rank)], called=ddp)
    found += evaluate(model) if rank == 0 else []
    return [found, by_hand(model, [batch(rank)], called=ddp), weights(model)]


@case(2)
def evaluated_unsharded(rank: int, folder: Path) -> Numbers:
    """FSDP2: all ranks unshard, one evaluates."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    model = vlm()
    for part in [*model.modules()]:
        if type(part).__name__ in ("Qwen2VLDecoderLayer", "Qwen2VLVisionBlock"):
            fully_shard(part, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    found = by_hand(model, [batch(rank)])
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.unshard()
    found += evaluate(model) if rank == 0 else []
    return [found, by_hand(model, [batch(rank)])]


# --- a process group after another -----------------------------------------------------------------


def saved(rank: int, folder: Path, number: int) -> Numbers:
    """Steps and saves of a ZeRO-3 engine, one of the ranks late."""
    in_seconds()
    trained = engine(Net(), 3)
    found: Numbers = steps(trained, [values(rank, number)] * (1 + number))
    for _ in range(1 + number):
        time.sleep(1 if rank == number % 2 else 0)
        trained.save_checkpoint(str(folder / "saved"))
    return [*found, weights(trained.module)]


def in_seconds() -> None:
    """What takes minutes in a real job takes seconds here."""
    if "vlmpatch" in sys.modules:
        rendezvous = importlib.import_module("vlmpatch.patches._shared.rendezvous")
        vars(rendezvous).update(LOOK=0.2, SOON=2.0, WAIT=20.0)
        uneven = importlib.import_module("vlmpatch.patches.deepspeed.zero3_uneven_calls")
        vars(uneven)["STILL"] = 0.5


@contextlib.contextmanager
def joined(rank: int, folder: Path, number: int, world: int) -> Iterator[None]:
    """In the process group of that number, over a store of its own."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    store = dist.FileStore(str(folder / f"store{number}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    yield
    dist.barrier()
    dist.destroy_process_group()
    deepspeed.comm.comm.cdb = None  # what DeepSpeed keeps of a process group
    for name, value in vars(groups).items():
        if isinstance(value, dist.ProcessGroup):
            setattr(groups, name, None)


@case(2, meets=False)
def made_anew(rank: int, folder: Path) -> Numbers:
    """The process group is destroyed and made again in the same processes."""
    found = []
    for number in range(3):
        with joined(rank, folder, number, 2):
            found.append(saved(rank, folder, number))
    return found


# --- what a rendezvous may take for the end --------------------------------------------------------


@case(2)
def child_of_a_rank_ends(rank: int, folder: Path) -> Numbers:
    """A process that a rank has forked ends as Python ends, exit handlers and all; the rank is late."""
    in_seconds()
    trained = engine(Net(), 3)
    found = steps(trained, [values(rank)])
    trained.save_checkpoint(str(folder / "saved"))
    if rank == 0:
        child = os.fork()
        if child == 0:
            ended = 1
            try:
                atexit._run_exitfuncs()
                ended = 0
            finally:
                os._exit(ended)  # anything else would run on in the code of the rank
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(2)
    trained.save_checkpoint(str(folder / "saved"))
    return [found, steps(trained, [values(rank)]), weights(trained.module)]


@case(2, 3)
def collective_of_a_thread(rank: int, folder: Path) -> Numbers:
    """Rank 0 saves, and a thread of its own goes to the barrier that the others wait in before they save."""
    in_seconds()
    trained = engine(Net(), 3)
    found = steps(trained, [values(rank)])
    beside = dist.new_group(list(range(dist.get_world_size())))

    def later() -> None:
        time.sleep(6)
        dist.barrier(group=beside)

    if rank == 0:
        thread = threading.Thread(target=later)
        thread.start()
    else:
        dist.barrier(group=beside)
    trained.save_checkpoint(str(folder / "saved"))
    if rank == 0:
        thread.join()
    return [found, steps(trained, [values(rank)]), weights(trained.module)]


@case(4)
def nodes_part(rank: int, folder: Path) -> Numbers:
    """hpZ: each node keeps a copy of what is frozen, and gathers that by itself, as often as it likes."""
    in_seconds()
    net = Net()
    frozen = net.layers[1:].requires_grad_(False)
    trained = engine(net, 3, zero_hpz_partition_size=2)
    found = steps(trained, [values(rank, step) for step in range(2)])
    with torch.no_grad():
        for layer in frozen if rank < 2 else reversed(frozen):
            found.append(layer(values(rank)).sum().item())
    time.sleep(8)
    return [found, steps(trained, [values(rank)]), weights(trained.module)]


# --- for how long ----------------------------------------------------------------------------------


@case(2, kind=tuple(at_size.WORLD))
def dropped(rank: int, folder: Path, kind: str) -> Numbers:
    """Trainings that are made and dropped are freed, as far as they are without vlmpatch."""
    return [at_size.left_alive(kind, at_size.Model(4, 4)) for _ in range(2)]


@case(2, kind=tuple(at_size.WORLD))
def flat(rank: int, folder: Path, kind: str) -> Numbers:
    """What steps leave behind is no more than without vlmpatch."""
    if "vlmpatch" in sys.modules:  # what is remembered of gathers has a bound, and this is past it
        vars(importlib.import_module("vlmpatch.patches._shared.deadlock"))["KEPT"] = 100
    grown = at_size.growth(at_size.training(kind, at_size.Model(4, 4)).step, STEPS)
    return [grown["blocks"] / STEPS, grown["bytes"] / (at_size.TRACED * STEPS)]


STEPS = 300
