"""Walks, one after the other, in one process of a stack: what the weights are after every step.

    python -m tests.mishaps.walker [--patched] ENGINE WALKS

prints a JSON line a walk: its name, the trace of plain torch (bare only) and that of the engine. A trace has
the sum of every weight after each deed that may move one; it ends with the error that ended the walk.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.mishaps.walk import Walk

MOVING = ("step", "zero", "dropped", "nan", "failed")
FAULT = "the fault of this batch"
# An eps that keeps what is rounding in a gradient from becoming a step.
RATES: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "AdamW": {"lr": 0.05, "eps": 0.1, "weight_decay": 0.1},
}
Trace = list[Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mishaps.walker")
    parser.add_argument("engine")
    parser.add_argument("walks", type=Path, help="a file with a walk a line")
    parser.add_argument("--patched", action="store_true", help="import vlmpatch first")
    asked = parser.parse_args()
    if asked.patched:
        import vlmpatch  # noqa: F401
    from vlmpatch_lab import collectives, engines, ports, ranks

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    engines.preload_engine()
    with ranks.process_group(0, ports.free_port(), world=1):
        collectives.wait_for_every_collective()
        engines.answer_for_cpu()
        importlib.import_module("deepspeed").init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
        for line in asked.walks.read_text().split():
            walk = Walk.of(line)
            plain = [] if asked.patched else take(walk, Plain)
            trace = take(walk, lambda net, walk: DeepSpeed(net, walk, asked.engine))
            print(json.dumps({"walk": str(walk), "plain": plain, "trace": trace}), flush=True)


class Engine(Protocol):
    """What a script uses of an engine."""

    def forward(self, x: Any, **options: bool) -> Any: ...

    def backward(self, loss: Any) -> None: ...

    def past(self, loss: Any) -> None: ...

    def step(self) -> None: ...

    def zero_grad(self) -> None: ...

    def read(self) -> None: ...

    def weights(self) -> list[float]: ...


class Plain:
    """Torch alone: what is right."""

    def __init__(self, net: Any, walk: Walk) -> None:
        import torch

        self.net, self.accumulation, self.count = net, walk.accumulation, 0
        self.optimizer = getattr(torch.optim, walk.optimizer)(net.parameters(), **RATES[walk.optimizer])

    def forward(self, x: Any, **options: bool) -> Any:
        return self.net(x, **options)

    def backward(self, loss: Any) -> None:
        (loss / self.accumulation).backward()

    past = backward

    def step(self) -> None:
        self.count += 1
        if self.count % self.accumulation == 0:
            self.optimizer.step()
            self.zero_grad()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def read(self) -> None:
        """Torch's are there to be looked at."""

    def weights(self) -> list[float]:
        return [parameter.detach().double().sum().item() for parameter in self.net.parameters()]


class DeepSpeed:
    """ZeRO, as ``engine`` says: its stage, and whether the optimizer is offloaded."""

    def __init__(self, net: Any, walk: Walk, engine: str) -> None:
        import deepspeed

        stage, _, offloaded = engine.removeprefix("zero").partition("_")
        zero: dict[str, Any] = {"stage": int(stage)}
        zero |= {"offload_optimizer": {"device": "cpu"}} if offloaded else {}
        torch_adam = {"torch_adam": True} if walk.optimizer == "AdamW" else {}
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": walk.accumulation,
            "gradient_clipping": 0.0,
            "optimizer": {"type": walk.optimizer, "params": RATES[walk.optimizer] | torch_adam},
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        self.net, self.lib, self.gathers = net, deepspeed, stage == "3"
        self.engine = deepspeed.initialize(model=net, model_parameters=list(net.parameters()), config=config)[
            0
        ]

    def forward(self, x: Any, **options: bool) -> Any:
        return self.engine(x, **options)

    def backward(self, loss: Any) -> None:
        self.engine.backward(loss)

    def past(self, loss: Any) -> None:
        loss.backward()

    def step(self) -> None:
        self.engine.step()

    def zero_grad(self) -> None:
        self.engine.optimizer.zero_grad()

    def read(self) -> None:
        for parameter in self.net.parameters():
            self.lib.utils.safe_get_full_grad(parameter)

    def weights(self) -> list[float]:
        parameters = list(self.net.parameters())
        with self.lib.zero.GatheredParameters(parameters, enabled=self.gathers):
            return [parameter.detach().double().sum().item() for parameter in parameters]


def network(seed: int) -> Any:
    """Four layers: one in a checkpoint, and one that a text passes by."""
    import torch
    from torch.utils.checkpoint import checkpoint

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle = torch.nn.Linear(4, 6), torch.nn.Linear(6, 6)
            self.image, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)
            self.fails = False

        def forward(self, x: Any, text: bool = False) -> Any:
            hidden = self.first(x).tanh()
            hidden = checkpoint(self.middle, hidden, use_reentrant=False).tanh()
            if self.fails:
                hidden.register_hook(fail)
            if not text:
                hidden = hidden + self.image(hidden)
            return self.last(hidden).pow(2).mean()

    torch.manual_seed(seed)
    return Net()


def fail(gradient: Any) -> None:
    raise RuntimeError(FAULT)


def take(walk: Walk, make: Callable[[Any, Walk], Engine]) -> Trace:
    """Do what ``walk`` says; returns its trace."""
    import torch

    net = network(walk.seed)
    engine, trace = make(net, walk), Trace()
    drawn = torch.Generator().manual_seed(walk.seed)
    for deed in walk.deeds:
        x = torch.randn(2, 4, generator=drawn)
        try:
            DEEDS[deed](engine, net, x)
            if deed in MOVING:
                trace.append(engine.weights())
        except Exception as error:
            return [*trace, ended(deed, error)]
    try:
        return [*trace, engine.weights()]
    except Exception as error:
        return [*trace, ended("the end", error)]


def ended(deed: str, error: Exception) -> str:
    """What a trace has of the deed that raised."""
    return f"{deed}: {type(error).__name__}: {error}"[:120]


def batch(engine: Engine, net: Any, x: Any) -> None:
    engine.backward(engine.forward(x))


def past(engine: Engine, net: Any, x: Any) -> None:
    engine.past(engine.forward(x))


def text(engine: Engine, net: Any, x: Any) -> None:
    engine.backward(engine.forward(x, text=True))


def of_sum(engine: Engine, net: Any, x: Any) -> None:
    first, second = engine.forward(x), engine.forward(2 * x)
    engine.backward(first + second)


def both(engine: Engine, net: Any, x: Any) -> None:
    first, second = engine.forward(x), engine.forward(2 * x)
    engine.backward(first)
    engine.backward(second)


def read(engine: Engine, net: Any, x: Any) -> None:
    batch(engine, net, x)
    engine.read()


def dropped(engine: Engine, net: Any, x: Any) -> None:
    batch(engine, net, x)
    engine.zero_grad()


def nan(engine: Engine, net: Any, x: Any) -> None:
    engine.backward(engine.forward(x) * math.nan)
    engine.zero_grad()


def failed(engine: Engine, net: Any, x: Any) -> None:
    net.fails = True
    try:
        batch(engine, net, x)
    except RuntimeError as error:
        if FAULT not in str(error):
            raise
    finally:
        net.fails = False
    engine.zero_grad()


def look(engine: Engine, net: Any, x: Any) -> None:
    import torch

    with torch.no_grad():
        engine.forward(x)


def evaluate(engine: Engine, net: Any, x: Any) -> None:
    net.eval()
    look(engine, net, x)
    net.train()


DEEDS: dict[str, Callable[[Engine, Any, Any], None]] = {
    "batch": batch,
    "past": past,
    "text": text,
    "sum": of_sum,
    "both": both,
    "step": lambda engine, net, x: engine.step(),
    "zero": lambda engine, net, x: engine.zero_grad(),
    "dropped": dropped,
    "nan": nan,
    "failed": failed,
    "look": look,
    "evaluate": evaluate,
    "read": read,
    "freeze": lambda engine, net, x: net.image.requires_grad_(False),
    "thaw": lambda engine, net, x: net.image.requires_grad_(True),
}


if __name__ == "__main__":
    main()
