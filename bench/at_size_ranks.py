"""What ``bench.at_size`` runs inside a stack: ``… bench.at_size_ranks SETTINGS [--patched]``.

A model of 5,000 tiny parameters in 100 checkpointed blocks: what is counted is Python, not arithmetic.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import deepspeed
import torch
import transformers
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from bench.python_calls import python_calls
from vlmpatch_lab import engines, forks, ranks
from vlmpatch_lab.collectives import wait_for_every_collective
from vlmpatch_lab.ports import free_port

BLOCKS, PARAMETERS, WIDTH = 100, 50, 4  # of a block
LIMIT = 3600.0
WORLD = {"checkpointed": 1, "ddp": 2, "zero1": 2, "zero2": 2, "zero3": 2}
TRACED = 0.1  # of the steps, the last ones, run under tracemalloc, which makes them slow


class Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, parameters: int) -> None:
        super().__init__()
        for number in range(parameters):
            self.register_parameter(f"row{number}", torch.nn.Parameter(torch.randn(WIDTH) / parameters))

    def forward(self, x: Any) -> Any:
        """``x`` and the result are of shape [WIDTH]."""
        return torch.tanh(x + torch.stack([*self._parameters.values()]).sum(0))


class Model(transformers.PreTrainedModel):  # type: ignore[misc]
    """So many blocks, each checkpointed; of transformers, as patches look at its models."""

    config_class = transformers.PretrainedConfig

    def __init__(self, blocks: int = BLOCKS, parameters: int = PARAMETERS) -> None:
        super().__init__(transformers.PretrainedConfig())
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block(parameters) for _ in range(blocks))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.square().mean()


class Training(NamedTuple):
    """What is trained, and a step of it."""

    called: Any
    step: Callable[[], None]


def training(kind: str, model: Any) -> Training:
    """``model`` under an engine; who drops it drops the engine."""
    x = torch.ones(WIDTH, requires_grad=True)
    if kind.startswith("zero"):
        engine = engine_of(model, int(kind[-1]))

        def step() -> None:
            engine.backward(engine(x))
            engine.step()

        return Training(engine, step)
    called = DistributedDataParallel(model) if kind == "ddp" else model
    parameters = list(model.parameters())

    def by_hand() -> None:  # SGD, without what an optimizer of torch's costs for 5,000 parameters
        called(x).backward()
        gradients = [parameter.grad for parameter in parameters]
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-1e-3)
            torch._foreach_zero_(gradients)

    return Training(called, by_hand)


def engine_of(model: Any, stage: int) -> Any:
    zero = {"stage": stage, **({"stage3_param_persistence_threshold": 0} if stage == 3 else {})}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
        "steps_per_print": 1_000_000,
    }
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]


def growth(step: Callable[[], None], steps: int) -> dict[str, float]:
    """What ``steps`` leave behind, past the first tenth: blocks of Python's memory, and bytes traced."""
    for _ in range(steps // 10):
        step()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(steps - steps // 10 - int(steps * TRACED)):
        step()
    gc.collect()
    blocks = sys.getallocatedblocks() - blocks
    tracemalloc.start()
    step()  # what is kept of the step before is of the same size, and was not traced
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(int(steps * TRACED)):
        step()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return {"blocks": blocks, "bytes": grown}


def left_alive(kind: str, model: Any) -> list[str]:
    """What is still there of ``model`` and what wraps it once a training of it is dropped."""
    made = training(kind, model)
    made.step()
    parts = [made.called, *model.modules(), *model.parameters()]
    dropped = [(type(each).__name__, weakref.ref(each)) for each in parts]
    del made, model, parts
    gc.collect()
    return sorted({name for name, each in dropped if each() is not None})


def measured(kind: str, steps: int) -> Iterator[tuple[str, float]]:
    step = training(kind, Model()).step
    for _ in range(3):
        step()
    yield "calls", python_calls(step)
    seconds = []
    for _ in range(min(30, steps)):
        started = time.process_time()  # others on the machine do not lengthen it
        step()
        seconds.append(time.process_time() - started)
    yield "milliseconds", 1000 * statistics.median(seconds)
    yield from growth(step, steps).items()


def one_rank(kind: str, steps: int, out: Path, rank: int, port: int) -> None:
    ranks.log_to(out.with_suffix(f".{rank}.log"))
    torch.set_num_threads(1)
    wait_for_every_collective()
    engines.answer_for_cpu()
    with ranks.process_group(rank, port, WORLD[kind]):
        found: dict[str, Any] = dict(measured(kind, steps))
        found["alive"] = left_alive(kind, Model(4, 4))
        if rank == 0:
            out.write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("--patched", action="store_true", help="import vlmpatch first")
    asked = parser.parse_args()
    engines.preload_engine()
    with tempfile.TemporaryDirectory() as folder:
        for kind, steps in asked.settings.items():
            out = Path(folder) / f"{kind}.json"
            forks.run(one_rank, kind, steps, out, world=WORLD[kind], port=free_port(), limit=LIMIT)
            if not out.exists():
                print(out.with_suffix(".0.log").read_text())
            print(json.dumps({"setting": kind, "steps": steps, **json.loads(out.read_text())}), flush=True)


if __name__ == "__main__":
    main()
