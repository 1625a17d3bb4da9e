"""python -m bench.traces_ranks TRACES MODEL FOLDER [--patched]: the part of ``bench.traces`` inside a stack.

Each trace is a file of JSON lines, one an event, written as it happens: a rank that waits for ever has
written what came before.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vlmpatch_lab.cell import Cell

COLUMNS = {
    "reentrant": ("checkpointing", "event", "block", "time"),
    "gathers": ("run", "event", "block", "held"),
    "ranks": ("run", "rank", "event", "module"),
    "stale": ("run", "step", "images", "gradient"),
}
# Every use of a parameter shows: nothing is gathered ahead, reused, or kept.
NOTHING_AHEAD = {
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_param_persistence_threshold": 0,
}
ZERO3 = Cell(engine="zero3", tuning="full", checkpointing="off", zero=NOTHING_AHEAD)
STALE = Cell(engine="zero3", tuning="full", compared=3, pattern="text-step")
ALONE = 40  # seconds after which ranks that wait for each other are ended
Tell = Callable[..., None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.traces_ranks")
    parser.add_argument("traces")
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--patched", action="store_true")
    asked = parser.parse_args()
    if asked.patched:
        import vlmpatch  # noqa: F401
    from vlmpatch_lab import engines, loading

    engines.preload_engine()
    loading.preload_models([asked.model])
    for name in asked.traces.split(","):
        TRACES[name](asked.model, asked.folder, "vlmpatch" if asked.patched else "stock")


def forked(rank_main: Callable[..., None], world: int, *arguments: Any) -> list[int | None]:
    from vlmpatch_lab import forks
    from vlmpatch_lab.ports import free_port

    return forks.run(rank_main, *arguments, world=world, port=free_port(), limit=ALONE)


def telling(path: Path) -> Tell:
    """Writes a line at once."""
    handle = path.open("a", buffering=1)

    def tell(*cells: Any) -> None:
        handle.write(json.dumps(cells) + "\n")

    return tell


def blocks_of(model: Any) -> dict[str, Any]:
    """The blocks of the language model by their numbers."""
    found = [module for module in model.modules() if type(module).__name__.endswith("DecoderLayer")]
    return {str(number): block for number, block in enumerate(found)}


def in_backward() -> bool:
    import torch

    return bool(torch._C._current_graph_task_id() != -1)


def watch_forwards(blocks: dict[str, Any], tell: Callable[[str, str], None]) -> None:
    """Tell of each forward of a block, and of each that runs again within a backward."""
    for number, block in blocks.items():
        block.register_forward_pre_hook(
            lambda *_, number=number: tell("recompute" if in_backward() else "forward", number)
        )


# --- reentrant: what autograd runs in two forwards and one backward --------------------------------------


def reentrant(model: Path, folder: Path, run: str) -> None:
    for checkpointing in ("reentrant", "nonreentrant"):
        out = folder / f"reentrant-{checkpointing}.jsonl"
        forked(reentrant_rank, 1, str(model), checkpointing, str(out))


def reentrant_rank(folder: str, checkpointing: str, out: str, rank: int, port: int) -> None:
    import torch

    from vlmpatch_lab.loading import prepare
    from vlmpatch_lab.ranks import process_group
    from vlmpatch_lab.samples import make_batches

    cell = Cell(engine="none", tuning="full", forwards=2, checkpointing=checkpointing)
    tell, times = telling(Path(out)), Counter[tuple[str, str]]()

    def happened(event: str, block: str) -> None:
        times[event, block] += 1
        tell(checkpointing, event, block, times[event, block])

    with process_group(rank, port, 1):
        model = prepare(cell, Path(folder))
        blocks = blocks_of(model)
        watch_forwards(blocks, happened)
        for number, block in blocks.items():
            weight: Any = block.mlp.down_proj.weight
            weight.register_post_accumulate_grad_hook(lambda _, number=number: happened("ready", number))
        losses = [model(**batch).loss for batch in make_batches(cell, Path(folder), 0)]
        torch.stack(losses).sum().backward()


# --- gathers: when ZeRO-3 holds a block ------------------------------------------------------------------


def gathers(model: Path, folder: Path, run: str) -> None:
    modes = {"off": "off", "stock": "nonreentrant"} if run == "stock" else {"vlmpatch": "nonreentrant"}
    for name, checkpointing in modes.items():
        cell = dataclasses.replace(ZERO3, checkpointing=checkpointing)
        forked(gathers_rank, 2, str(model), cell, name, str(folder / f"gathers-{name}.jsonl"))


def gathers_rank(folder: str, cell: Cell, name: str, out: str, rank: int, port: int) -> None:
    from vlmpatch_lab.ranks import process_group
    from vlmpatch_lab.samples import make_batches

    with process_group(rank, port):
        engine, model = trained(cell, folder)
        for step in range(2):
            batches = make_batches(cell, Path(folder), rank)
            if step == 1 and rank == 0:  # the first step still learns the order of modules
                watch_gathers(model, functools.partial(telling(Path(out)), name))
            engine.backward(engine.forward(batches[0]))
            engine.step()


def trained(cell: Cell, folder: str) -> tuple[Any, Any]:
    from vlmpatch_lab.engines import ENGINES
    from vlmpatch_lab.loading import prepare

    model = prepare(cell, Path(folder))
    return ENGINES[cell.engine](cell, model), model


def watch_gathers(model: Any, tell: Tell) -> None:
    """Tell of each forward, and of each change in what part of a block's parameters is gathered."""
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    blocks = blocks_of(model)
    parts = {number: list(block.parameters()) for number, block in blocks.items()}
    held = dict.fromkeys(blocks, "0.000")

    def look() -> None:
        for number, parameters in parts.items():
            here = sum(p.ds_numel for p in parameters if p.ds_status != ZeroParamStatus.NOT_AVAILABLE)
            part = f"{here / sum(p.ds_numel for p in parameters):.3f}"
            if part != held[number]:
                held[number] = part
                tell("holds", number, part)

    for method in ("__all_gather_params_", "__release_param"):
        name = f"_PartitionedParameterCoordinator{method}"
        function = getattr(PartitionedParameterCoordinator, name)
        setattr(PartitionedParameterCoordinator, name, _then(function, look))
    watch_forwards(blocks, lambda event, number: tell(event, number, held[number]))


def _then(function: Callable[..., Any], look: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        look()
        return result

    return call


# --- ranks: which gathers two ranks begin when one has no image ------------------------------------------


def ranks(model: Path, folder: Path, run: str) -> None:
    cell = dataclasses.replace(ZERO3, compared=1, pattern="one-rank-text")
    forked(ranks_rank, 2, str(model), cell, run, str(folder))


def ranks_rank(folder: str, cell: Cell, run: str, out: str, rank: int, port: int) -> None:
    from vlmpatch_lab.collectives import wait_for_every_collective
    from vlmpatch_lab.ranks import process_group
    from vlmpatch_lab.samples import Samples

    with process_group(rank, port):
        wait_for_every_collective(like_nccl=True)  # before DeepSpeed keeps torch's functions
        engine, model = trained(cell, folder)
        tell = functools.partial(telling(Path(out) / f"ranks-{run}-{rank}.jsonl"), run, rank)
        watch_parts(model, tell)
        engine.forward(Samples(cell, Path(folder)).of(0, 0, rank)[0])


def watch_parts(model: Any, tell: Tell) -> None:
    """Tell of each gather that begins, and of each that every rank came to, by the module it is for."""
    from deepspeed.runtime.zero.partition_parameters import Init
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    named = {parameter.ds_id: name for name, parameter in model.named_parameters()}

    def told(gather: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(gather)
        def call(owner: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
            module = named[min(parameter.ds_id for parameter in parameters)].rpartition(".")[0]
            tell("begins", module)
            result = gather(owner, parameters, *args, **kwargs)
            tell("ends", module)
            return result

        return call

    # What a module's forward uses, and what is read of a module outside of its forward.
    gathers = "_PartitionedParameterCoordinator__all_gather_params_"
    for owner, name in ((PartitionedParameterCoordinator, gathers), (Init, "_all_gather")):
        setattr(owner, name, told(getattr(owner, name)))


# --- stale: the gradient that a step uses for the vision tower -------------------------------------------


def stale(model: Path, folder: Path, run: str) -> None:
    import torch

    from vlmpatch_lab.cell import PATTERNS
    from vlmpatch_lab.run import run as trained_cell

    cells = {"right": STALE.reference, "stock": STALE} if run == "stock" else {"vlmpatch": STALE}
    for name, cell in cells.items():
        where = folder / name
        outcomes = trained_cell(cell, str(model), where)
        if not all(outcome["ok"] for outcome in outcomes):
            raise RuntimeError(str(outcomes))
        tell = telling(folder / f"stale-{name}.jsonl")
        for step, gradients in enumerate(torch.load(where / "rank0.pt")["steps"]):
            images = PATTERNS[STALE.pattern](step, 0, 0) == "image"
            tell(name, step + 1, "yes" if images else "no", f"{norm(gradients):.5g}")


def norm(gradients: dict[str, Any]) -> float:
    """Of the vision tower's gradients together; those that are missing count as zero."""
    squares: Iterator[float] = (float(g.square().sum()) for name, g in gradients.items() if "visual" in name)
    return math.sqrt(sum(squares))


TRACES: dict[str, Callable[[Path, Path, str], None]] = {
    "reentrant": reentrant,
    "gathers": gathers,
    "ranks": ranks,
    "stale": stale,
}

if __name__ == "__main__":
    main()
