"""What one rank of a cell does: train a small network through a mishap, and write down what came of it."""

from __future__ import annotations

import contextlib
import json
import math
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.mishaps import streams
from tests.mishaps.cell import PLAIN, WINDOWS, WORLD, Cell
from vlmpatch_lab.collectives import wait_for_every_collective
from vlmpatch_lab.engines import answer_for_cpu
from vlmpatch_lab.ranks import log_to, process_group, states
from vlmpatch_lab.recording import value_of

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 2.5 has it elsewhere
    from torch.distributed._composable.fsdp import fully_shard
try:  # cells of DDP run without it
    import deepspeed
except ImportError:
    deepspeed = None

VALUES = {"nan": math.nan, "inf": math.inf, "large": 10.0}
ERRORS = {"error": RuntimeError, "memory": torch.cuda.OutOfMemoryError}
CAUGHT = "the mishap"
PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}},
}
# An eps that keeps what is rounding in a gradient from becoming a step.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {"lr": 0.02, "eps": 0.1, "weight_decay": 0.1},
    "SGD": {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1},
}
Batch = tuple[torch.Tensor, torch.Tensor]


class Fault:
    """What goes wrong in one forward and its backward."""

    def __init__(self, where: str, what: str) -> None:
        self.where, self.what, self.runs = where, what, 0

    def between(self, hidden: torch.Tensor) -> torch.Tensor:
        """After the first layers; in the backward, before theirs and after all others'."""
        if self.where == "forward":
            self.strike()
        if self.where in ("backward", "gradient") and hidden.requires_grad:
            hidden.register_hook(self.on_gradient)
        return hidden

    def on_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.where == "backward":
            self.strike()
        return gradient * VALUES[self.what]

    def in_checkpoint(self) -> None:
        self.runs += 1
        if self.where == "recompute" and self.runs > 1:
            self.strike()

    def strike(self) -> None:
        raise ERRORS[self.what](CAUGHT)


class Net(torch.nn.Module):  # type: ignore[misc]
    """Two checkpointed blocks between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.last = torch.nn.Linear(8, 4)
        self.fault: Fault | None = None
        self.used = 2  # of the blocks

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.first(x).tanh()
        for number, block in enumerate(self.blocks[: self.used]):
            hidden = checkpoint(self.through, block, hidden, number, use_reentrant=False)
            if number == 0 and self.fault:
                hidden = self.fault.between(hidden)
        out = self.last(hidden)
        return out if y is None else (out - y).pow(2).mean()

    def through(self, block: torch.nn.Module, hidden: torch.Tensor, number: int) -> torch.Tensor:
        if number == 0 and self.fault:
            self.fault.in_checkpoint()
        return block(hidden).tanh()


class Engine(Protocol):
    net: Net

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor: ...

    def backward(self, loss: torch.Tensor) -> None: ...

    def step(self) -> None: ...

    def zero_grad(self) -> None: ...

    def micro_batch(self) -> contextlib.AbstractContextManager[Any]: ...

    def gathered(self) -> contextlib.AbstractContextManager[Any]: ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...

    def state(self) -> dict[Any, Any]: ...


class Plain:
    """One process that sees the samples of every rank, and torch alone: what is right."""

    parts = WORLD

    def __init__(self, cell: Cell, net: Net) -> None:
        self.cell, self.net, self.count = cell, net, 0
        self.optimizer = optimizer_of(cell, net)
        self.model: Any = net

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(*tensors)
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        (loss / self.parts / self.cell.accumulation).backward()

    def step(self) -> None:
        self.count += 1
        if self.count % self.cell.accumulation:
            return
        grads = [p.grad for p in self.net.parameters() if p.grad is not None]
        if self.cell.it.clip:
            self.clip(self.cell.it.clip)
        if not self.cell.it.scaled or all(bool(grad.isfinite().all()) for grad in grads):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def clip(self, most: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), most)

    def zero_grad(self) -> None:
        {"optimizer": self.optimizer, "engine": self.model, "model": self.net}[self.cell.it.by].zero_grad()

    def micro_batch(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def gathered(self) -> contextlib.AbstractContextManager[Any]:
        """Within, parameters that are sharded by views are whole."""
        return contextlib.nullcontext()

    def save(self, folder: Path) -> None:
        if self.cell.ranks == 1 or dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save([self.net.state_dict(), self.optimizer.state_dict()], folder / "plain.pt")
        dist.barrier()

    def load(self, folder: Path) -> None:
        weights, state = torch.load(folder / "plain.pt", weights_only=False)
        self.net.load_state_dict(weights)
        self.optimizer.load_state_dict(state)
        self.optimizer.zero_grad()
        self.count = 0

    def state(self) -> dict[Any, Any]:
        return dict(self.optimizer.state)


class Ddp(Plain):
    parts = 1

    def __init__(self, cell: Cell, net: Net) -> None:
        self.cell = cell
        wrapped = self.wrap(net)  # before there is an optimizer: it may make other parameters
        super().__init__(cell, net)
        self.model = wrapped

    def wrap(self, net: Net) -> Any:
        unused = self.cell.it.before == "leave"
        return DistributedDataParallel(net, find_unused_parameters=unused)

    def micro_batch(self) -> contextlib.AbstractContextManager[Any]:
        last = (self.count + 1) % self.cell.accumulation == 0
        context: contextlib.AbstractContextManager[Any] = (
            contextlib.nullcontext() if last else self.model.no_sync()
        )
        return context


class Sharded(Ddp):
    """FSDP: every block and the whole network; a rank saves and loads what it has."""

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        states = get_state_dict(self.model, self.optimizer)
        torch.save(states, folder / f"rank{dist.get_rank()}.pt")
        dist.barrier()

    def load(self, folder: Path) -> None:
        weights, state = torch.load(folder / f"rank{dist.get_rank()}.pt", weights_only=False)
        set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=state)
        self.optimizer.zero_grad()
        self.count = 0


class Fsdp1(Sharded):
    def wrap(self, net: Net) -> Any:
        policy = CustomPolicy(lambda module: any(module is block for block in net.blocks))
        return FullyShardedDataParallel(
            net, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu")
        )

    def clip(self, most: float) -> None:
        self.model.clip_grad_norm_(most)  # a rank has a part of each gradient

    def gathered(self) -> contextlib.AbstractContextManager[Any]:
        whole: contextlib.AbstractContextManager[Any] = self.model.summon_full_params(
            self.model, writeback=False
        )
        return whole


class Fsdp2(Sharded):
    def wrap(self, net: Net) -> Any:
        mesh = init_device_mesh("cpu", (WORLD,))
        for module in (*net.blocks, net):
            fully_shard(module, mesh=mesh)
        return net

    def micro_batch(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()  # it reduces every one


class DeepSpeed:
    def __init__(self, cell: Cell, net: Net) -> None:
        self.cell, self.net = cell, net
        config = configuration(cell)
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(cell.engine[6:], torch.float32)
        self.engine = deepspeed.initialize(model=net, optimizer=optimizer_of(cell, net), config=config)[0]
        if cell.it.overlapped:
            streams.simulate(self.engine.optimizer)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.engine(*(tensor.to(self.dtype) for tensor in tensors))
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        self.engine.backward(loss)

    def step(self) -> None:
        self.engine.step()

    def zero_grad(self) -> None:
        # ZeRO-3 would record a stream for gradients that lie on an accelerator, and a CPU has none.
        accelerator = deepspeed.accelerator.get_accelerator()
        accelerator.on_accelerator = lambda tensor: False
        of = {"optimizer": self.engine.optimizer, "engine": self.engine, "model": self.net}
        of[self.cell.it.by].zero_grad()
        del accelerator.on_accelerator

    def micro_batch(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def gathered(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder))

    def load(self, folder: Path) -> None:
        self.engine.load_checkpoint(str(folder))

    def state(self) -> dict[Any, Any]:
        optimizer = self.engine.optimizer
        inner = getattr(optimizer, "optimizer", optimizer)
        scale = getattr(optimizer, "cur_scale", None) or getattr(optimizer, "loss_scale", None)
        counted = [self.engine.global_steps, self.engine.skipped_steps, self.engine.micro_steps, scale]
        return {"counted": counted, "inner": dict(inner.state)}


def configuration(cell: Cell) -> dict[str, Any]:
    stage, _, kind = cell.engine.removeprefix("zero").partition("_")
    zero: dict[str, Any] = {"stage": int(stage), "overlap_comm": cell.it.overlapped}
    if stage == "3":
        zero["stage3_param_persistence_threshold"] = 0
    if cell.it.bucket:
        zero["reduce_bucket_size"] = cell.it.bucket
    if kind == "offload":
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": cell.accumulation,
        "zero_optimization": zero,
        "gradient_clipping": cell.it.clip,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
        **PRECISIONS.get(kind, {}),
    }


def optimizer_of(cell: Cell, net: Net) -> torch.optim.Optimizer:
    name = cell.it.optimizer
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(net.parameters(), **OPTIMIZERS[name])
    return optimizer


TORCH: dict[str, Callable[[Cell, Net], Engine]] = {"ddp": Ddp, "fsdp1": Fsdp1, "fsdp2": Fsdp2}


def make(cell: Cell, seed: int = 0) -> Engine:
    torch.manual_seed(seed)
    if cell.engine in PLAIN:
        return Plain(cell, Net())
    return TORCH.get(cell.engine, DeepSpeed)(cell, Net())


def sample(number: int, rank: int) -> Batch:
    drawn = torch.Generator().manual_seed(10 * number + rank)
    return torch.randn(2, 4, generator=drawn), torch.randn(2, 4, generator=drawn)


# --- what scripts do ------------------------------------------------------------------------------------


class Script:
    """One training of one network, or of two beside each other."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, self.it, self.folder = cell, cell.it, folder
        self.engines = [make(cell, seed) for seed in range(1 if self.it.script == "one" else 2)]
        # One process sees the samples of all ranks, in their order.
        self.seen = [*range(WORLD)] if cell.ranks == 1 else [dist.get_rank()]
        self.losses: list[float] = []
        self.start = self.weights()

    def train(self) -> None:
        self.begin()
        for number in range(WINDOWS * self.cell.accumulation):
            self.meanwhile(number)
            for turn in range(len(self.engines)):
                self.one(number, turn)

    def begin(self) -> None:
        """What a script does with an engine that it has made."""
        if self.it.before == "thaw":
            self.engines[0].net.first.requires_grad_(False)

    def resume(self) -> None:
        """Goes on in a new engine."""
        self.engines[0].save(self.folder)
        self.engines = [make(self.cell)]
        self.begin()
        self.engines[0].load(self.folder)

    def meanwhile(self, number: int) -> None:
        """What a script does between two batches."""
        if self.it.resumed and number == self.it.resumed * self.cell.accumulation:
            self.resume()
        engine, before = self.engines[0], self.it.before
        if before == "reload" and number == self.cell.accumulation:
            engine.save(self.folder)
        if before == "leave":
            engine.net.used = (
                1 if number // self.cell.accumulation == self.cell.at // self.cell.accumulation else 2
            )
        if before == "freeze-after" and number == self.cell.at + 1:
            engine.net.first.requires_grad_(False)
        if number != self.cell.at:
            return
        if before in ("freeze", "thaw"):
            engine.net.first.requires_grad_(before == "thaw")
        elif before == "evaluate":
            self.evaluate(engine)
        elif before == "save":
            engine.save(self.folder)
        elif before == "resume":
            self.resume()
        elif before == "reload":
            engine.load(self.folder)

    def evaluate(self, engine: Engine) -> None:
        engine.net.eval()
        with torch.no_grad():
            self.losses += [engine.forward(*sample(99, rank)).item() for rank in self.seen]
        engine.net.train()

    def one(self, number: int, turn: int) -> None:
        """One batch of the network whose turn it is."""
        engine = self.engines[turn]
        if not self.it.where or turn or number != self.cell.at or self.spared:
            self.whole(turn, number)
            engine.step()
            return
        try:
            self.whole(turn, number, self.it.where)
        except RuntimeError as error:
            if CAUGHT not in str(error):
                raise
        if self.cell.engine == "zeroed" or (self.zeroes and self.cell.engine != "kept"):
            engine.zero_grad()
        if self.it.then == "retry":
            self.whole(turn, number)
        if self.it.then == "halves":
            self.in_halves(engine, number)
        if self.it.then == "step" or self.it.retried:
            engine.step()

    def whole(self, turn: int, number: int, where: str = "") -> None:
        """Forward and backward of a batch; ``where`` something goes wrong in it."""
        engine = self.engines[turn]
        through = self.it.script == "through" and turn == 0
        with engine.micro_batch(), untrained(self.engines[1].net) if through else contextlib.nullcontext():
            losses = self.forward(turn, number, where)
            if where and self.unread:
                return
            for loss in losses:
                engine.backward(loss)

    @property
    def spared(self) -> bool:
        """Whether what one rank suffers is none of this process's; where one is right, it did not happen."""
        return self.it.alone and (self.cell.engine in PLAIN or dist.get_rank() not in self.it.ranks)

    @property
    def zeroes(self) -> bool:
        return self.it.then == "zero" or self.it.retried

    @property
    def unread(self) -> bool:
        """Whether a batch that went wrong has no backward."""
        return self.it.then == "unread" or self.cell.engine == "kept"

    def forward(self, turn: int, number: int, where: str) -> list[torch.Tensor]:
        """The losses of the samples that this process sees.

        Raises:
            RuntimeError: the forward of some rank failed; where it may fail on one, the others are told.
        """
        losses, failed = [], None
        try:
            losses = [self.loss(turn, sample(number, rank), rank, where) for rank in self.seen]
        except RuntimeError as error:
            failed = error
        if where == "forward" and len(self.it.ranks) < WORLD:
            told = torch.tensor(float(failed is not None))
            dist.all_reduce(told)
            failed = failed or (RuntimeError(CAUGHT) if told else None)
        if failed:
            raise failed
        return losses

    def loss(self, turn: int, batch: Batch, rank: int, where: str) -> torch.Tensor:
        engine, (x, y) = self.engines[turn], batch
        wrong = where and rank in self.it.ranks
        engine.net.fault = Fault(where, self.it.what) if wrong else None
        if self.it.script == "through" and turn == 0:
            loss = self.engines[1].forward(engine.forward(x), y)
        else:
            loss = engine.forward(x, y)
        self.losses.append(loss.item())
        if wrong and where == "outset":
            loss.register_hook(Fault("backward", self.it.what).on_gradient)
        return loss * VALUES[self.it.what] if wrong and where == "loss" else loss

    def in_halves(self, engine: Engine, number: int) -> None:
        engine.net.fault = None
        with engine.micro_batch():
            for rank in self.seen:
                x, y = sample(number, rank)
                for half in (slice(0, 1), slice(1, 2)):
                    engine.backward(engine.forward(x[half], y[half]) / 2)

    def record(self) -> dict[str, Any]:
        state = [value for engine in self.engines for value in flat(engine.state())]
        for engine in self.engines:
            engine.net.requires_grad_(True)  # ZeRO-3 shows no master copy of what is frozen
        weights = self.weights()
        moved = [now - before for now, before in zip(weights, self.start, strict=True)]
        return {"losses": self.losses, "weights": weights, "moved": moved, "state": state}

    def weights(self) -> list[torch.Tensor]:
        """Of every network, whole."""
        found = []
        for engine in self.engines:
            with engine.gathered():
                found += [value_of(p).detach().float().clone() for p in engine.net.parameters()]
        return found


@contextlib.contextmanager
def untrained(net: Net) -> Iterator[None]:
    net.requires_grad_(False)
    yield
    net.requires_grad_(True)


def flat(state: Any) -> list[Any]:
    """Every tensor and number in what an optimizer keeps, in its order."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        return [value for each in state for value in flat(each)]
    if hasattr(state, "to_local"):
        state = state.to_local()
    return [state.detach().clone() if isinstance(state, torch.Tensor) else state]


def main(cell: Cell, folder: Path, rank: int, port: int) -> None:
    """Entry of a forked rank; writes ``rank<N>.pt`` or what ended it, ``rank<N>.json``."""
    log_to(folder / f"rank{rank}.log")
    report: dict[str, Any] = {}
    try:
        with process_group(rank, port, cell.ranks):
            if cell.engine.startswith("zero"):
                wait_for_every_collective()
                answer_for_cpu()
                deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
            script = Script(cell, folder / "checkpoint")
            script.train()
            torch.save(script.record(), folder / f"rank{rank}.pt")
    except Exception as error:
        traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"
        raise SystemExit(1) from None
    finally:
        report["patches"] = states()
        (folder / f"rank{rank}.json").write_text(json.dumps(report))
