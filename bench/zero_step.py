"""What a ZeRO step costs with vlmpatch where every gradient arrives, beside DeepSpeed by itself.

    python -m bench.zero_step STACK [STACK ...]

Two ranks over gloo, ZeRO-1, 2 and 3, overlapping and not, two micro-batches a step. Counted in the fifth
step, when ranks have agreed on an order: collectives, the elements they carry, the most elements that
parameters hold as gradients at once, and Python calls. Printed for DeepSpeed alone and with vlmpatch,
as a Markdown table; all but the Python calls must be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.lab import envs, launch
from vlmpatch_lab.cell import WORLD, Cell

STEPS = 5
CELLS = {
    "ZeRO-1": Cell(engine="zero1"),
    "ZeRO-2": Cell(engine="zero2"),
    "ZeRO-2, overlap, small buckets": Cell(
        engine="zero2", zero={"overlap_comm": True, "reduce_bucket_size": 20000}
    ),
    "ZeRO-2, offload": Cell(engine="zero2", zero={"offload_optimizer": {"device": "cpu"}}),
    "ZeRO-3": Cell(engine="zero3"),
}
COLLECTIVES = ("all_reduce", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast")
COLUMNS = ("collectives", "elements", "held", "calls")


def wanted() -> list[Cell]:
    shared: dict[str, Any] = {"tuning": "full", "checkpointing": "nonreentrant", "compared": 1}
    return [dataclasses.replace(cell, accumulation=2, **shared) for cell in CELLS.values()]


# --- one rank, in the stack's environment -------------------------------------------------------------


def rank_main(cell: Cell, folder: str, out: str, rank: int, port: int) -> None:
    from vlmpatch_lab import ranks

    ranks._log_to(Path(f"{out}.rank{rank}.log"))
    with ranks.process_group(rank, port):
        model = ranks.prepare(cell, Path(folder))
        engine = ranks.ENGINES[cell.engine](cell, model)
        samples = ranks.Samples(cell, Path(folder))
        batches = [samples.of(0, micro, rank) for micro in range(cell.accumulation)]

        def step() -> None:
            for (batch,) in batches:
                engine.backward(engine.forward(batch))
                engine.step()

        for _ in range(STEPS - 1):
            step()
        with counting(model) as counts:
            step()
    if rank == 0:
        Path(out).write_text(json.dumps(counts))


@contextlib.contextmanager
def counting(model: Any) -> Iterator[dict[str, int]]:
    """Count what one step does."""
    import torch.distributed as dist

    counts = dict.fromkeys(COLUMNS, 0)
    params = [param for param in model.parameters() if param.requires_grad]

    def counted(collective: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensor = next((value for value in [*args, *kwargs.values()] if hasattr(value, "numel")), None)
            counts["collectives"] += 1
            counts["elements"] += 0 if tensor is None else tensor.numel()
            return collective(*args, **kwargs)

        return call

    def hold(param: Any) -> None:
        held = sum(other.grad.numel() for other in params if other.grad is not None)
        counts["held"] = max(counts["held"], held)

    def note(frame: Any, event: str, argument: object) -> None:
        counts["calls"] += event == "call"

    with contextlib.ExitStack() as undo:
        for name in COLLECTIVES:
            undo.callback(setattr, dist, name, getattr(dist, name))
            setattr(dist, name, counted(getattr(dist, name)))
        for param in params:
            undo.callback(param.register_post_accumulate_grad_hook(hold).remove)
        sys.setprofile(note)
        undo.callback(sys.setprofile, None)
        yield counts


def child(cells: str, folder: str, out: str, patched: bool) -> None:
    if patched:
        import vlmpatch  # noqa: F401
    from vlmpatch_lab import ranks
    from vlmpatch_lab.ports import free_port

    ranks.load_extension()
    fork = multiprocessing.get_context("fork")
    for number, fields in enumerate(json.loads(Path(cells).read_text())):
        port, cell = free_port(), Cell(**fields)
        arguments = [(cell, folder, f"{out}.{number}", rank, port) for rank in range(WORLD)]
        members = [fork.Process(target=rank_main, args=each) for each in arguments]
        for member in members:
            member.start()
        for member in members:
            member.join()


# --- from outside ---------------------------------------------------------------------------------------


def measure(name: str, patched: bool) -> list[dict[str, int]]:
    stack = envs.read_stacks()[name]
    launch.warm_up(stack)
    model = launch.checkpoint(stack, "qwen2_vl")
    with tempfile.TemporaryDirectory() as made:
        cells, out = Path(made, "cells.json"), Path(made, "counts")
        cells.write_text(json.dumps([dataclasses.asdict(cell) for cell in wanted()]))
        command: list[str | Path] = ["python", "-m", "bench.zero_step", "--child", cells, model, out]
        finished = launch.run(stack, [*command, str(int(patched))], limit=600)
        files = [Path(f"{out}.{number}") for number in range(len(CELLS))]
        if finished.rc != 0 or not all(file.exists() for file in files):
            raise RuntimeError(str(finished))
        return [json.loads(file.read_text()) for file in files]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stacks", nargs="*", metavar="STACK")
    parser.add_argument("--child", nargs=4)
    asked = parser.parse_args()
    if asked.child:
        cells, folder, out, patched = asked.child
        child(cells, folder, out, patched == "1")
        return
    print("| stack | | collectives | elements | held as gradients | Python calls |")
    print("|---" * 6 + "|")
    for name in asked.stacks:
        both = zip(CELLS, measure(name, False), measure(name, True), strict=True)
        for what, alone, mended in both:
            pairs = [f"{alone[column]} / {mended[column]}" for column in COLUMNS]
            print(f"| {name} | {what} | " + " | ".join(pairs) + " |", flush=True)


if __name__ == "__main__":
    main()
