"""Everything here that a GPU can show, in the environment that runs it.

    python -m tests.gpu [--only overlap,right,trainer,cost] [--cells WORD …]

Needs torch with CUDA, DeepSpeed, transformers, PEFT and a GPU; cells of qlora need bitsandbytes, those of
liger its kernels. On a single GPU two ranks go over gloo, for NCCL refuses them. One line a cell is printed,
and put on record in data/gpu.csv; below it what a run died of.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch

from tests.gpu import record, trainer
from tests.gpu.train import Cell

LIMIT = 240.0  # seconds a process may take
TOGETHER = 10  # processes of tiny cells at a time
ENGINES = ("ddp", "zero2", "zero3")
SHARDED = ("fsdp1", "fsdp2")
BESIDE = ("evaluated", "liger", "compiled")
LOGGED = ("losses", "norms", "evaluations")
WAYS: dict[str, list[str]] = {"bare": [], "patched": ["--patched"]}


def overlap(words: list[str]) -> Iterator[dict[str, Any]]:
    """How many reductions read something else, of a large gradient and of buckets."""
    asked = [each for each in product(("large", "buckets"), (1, 3)) if has(f"{each[0]} {each[1]}", words)]
    with ThreadPoolExecutor(TOGETHER) as pool:

        def found(each: tuple[str, int]) -> dict[str, Any]:
            command = ["-m", "tests.gpu.overlap", each[0], str(each[1])]
            return {way: printed([*command, *more]) for way, more in WAYS.items()}

        for each, ways in zip(asked, pool.map(found, asked), strict=True):
            yield {"check": "overlap", "cell": f"{each[0]} {each[1]}", **ways}


def right(words: list[str]) -> Iterator[dict[str, Any]]:
    """Gradients of the first step, held against float32 without an engine and without checkpointing."""
    cells = [
        Cell(engine, tuning, mixed=mixed, dtype=dtype, ranks=2 if mixed else 1)
        for dtype in ("float32", "bfloat16")
        for mixed in (False, True)
        for engine in (*ENGINES, *SHARDED)
        for tuning in (("lora", "qlora", "full") if engine in ENGINES else ("qlora", "full"))
    ]
    cells = [cell for cell in cells if has(describe(cell), words)]
    with ThreadPoolExecutor(TOGETHER) as pool, tempfile.TemporaryDirectory() as folder:
        references = {
            key: pool.submit(gradients, reference, Path(folder))
            for key, reference in references_of(cells).items()
        }
        exact = {key: future.result()[1] for key, future in references.items()}

        def found(cell: Cell) -> dict[str, Any]:
            mine = {way: gradients(cell, Path(folder), *more) for way, more in WAYS.items()}
            wanted = exact[key_of(dataclasses.replace(cell, dtype="float32"))]
            ways = {way: {**said, "off": apart(got, wanted)} for way, (said, got) in mine.items()}
            return {**ways, "plain": {"off": apart(exact[key_of(cell)], wanted)}}

        for cell, ways in zip(cells, pool.map(found, cells), strict=True):
            yield {"check": "right", "cell": describe(cell), **ways}


def by_trainer(words: list[str]) -> Iterator[dict[str, Any]]:
    """What HF Trainer logs of its first steps, held against one process that checkpoints nothing."""
    cells = [
        trainer.Cell(engine, tuning, amp=amp, beside=beside, mixed=ranks == 2, ranks=ranks)
        for amp, beside in (*((amp, "") for amp in ("fp16", "bf16")), *(("bf16", each) for each in BESIDE))
        for ranks in (1, 2)
        for engine in ENGINES
        for tuning in ("lora", "full")
    ]
    cells = [cell for cell in cells if has(describe(cell), words)]
    with ThreadPoolExecutor(TOGETHER) as pool:
        wanted = {plain(cell): pool.submit(said_by, plain(cell)) for cell in cells}

        def found(cell: trainer.Cell) -> dict[str, Any]:
            exact = wanted[plain(cell)].result()
            return {
                way: {**(said := said_by(cell, *more)), "off": off(said, exact)} for way, more in WAYS.items()
            }

        for cell, ways in zip(cells, pool.map(found, cells), strict=True):
            yield {"check": "trainer", "cell": describe(cell), **ways}


def said_by(cell: trainer.Cell, *more: str) -> dict[str, Any]:
    return printed(launched(cell, more, "tests.gpu.trainer"))


def off(said: dict[str, Any], wanted: dict[str, Any]) -> float | str:
    """How far what a Trainer logged is off at most, relative."""
    if "error" in said or "error" in wanted:
        return "none"
    pairs = [pair for kind in LOGGED for pair in zip(said[kind], wanted[kind], strict=True)]
    most: float = max(abs(got - exact) / abs(exact) for got, exact in pairs)
    return most


def cost(words: list[str]) -> Iterator[dict[str, Any]]:
    """Memory and time of a step at size, one process at a time."""
    settings = [*product(("nonreentrant",), ENGINES), *product(("default",), ("zero2", "zero3"))]
    cells = [
        Cell(engine, "lora", checkpointing=checkpointing, size="large", steps=13)
        for checkpointing, engine in settings
    ]
    for cell in (cell for cell in cells if has(describe(cell), words)):
        ways = {way: printed(launched(cell, more)) for way, more in WAYS.items()}
        yield {"check": "cost", "cell": describe(cell), **ways}


def has(described: str, words: list[str]) -> bool:
    return all(word in described.split() for word in words)


def references_of(cells: list[Cell]) -> dict[str, Cell]:
    """Without an engine and without checkpointing: in float32 for all, and in the precision of each."""
    exact = [dataclasses.replace(cell, dtype="float32") for cell in cells]
    return {key_of(cell): plain(cell) for cell in (*cells, *exact)}


def key_of(cell: Cell) -> str:
    return f"{cell.tuning} {cell.mixed} {cell.dtype}"


def plain(cell: Any) -> Any:
    return dataclasses.replace(cell, engine="none", checkpointing="off")


def describe(cell: Cell) -> str:
    rows = "mixed" if cell.mixed else "images"
    computed = [cell.amp, *filter(None, [cell.beside])] if isinstance(cell, trainer.Cell) else [cell.dtype]
    words = (cell.engine, cell.tuning, *computed, rows, f"ranks={cell.ranks}", cell.checkpointing)
    return " ".join(words)


def gradients(cell: Cell, folder: Path, *more: str) -> tuple[dict[str, Any], Any]:
    """What the process printed, and the gradients that it wrote."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".pt") as file:
        said = printed(launched(dataclasses.replace(cell, gradients=file.name), more))
        written = os.path.getsize(file.name) > 0
        return said, torch.load(file.name) if written else None


def launched(cell: Cell, more: Any, program: str = "tests.gpu.train") -> list[str]:
    alone = cell.engine == "none"
    ranks = 1 if alone else cell.ranks
    if ranks > torch.cuda.device_count():
        cell = dataclasses.replace(cell, backend="gloo")
    start = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d"]
    said = json.dumps(dataclasses.asdict(cell))
    return [*start, "--rdzv-endpoint=localhost:0", "-m", program, said, *more]


def printed(command: list[str]) -> dict[str, Any]:
    """The JSON that a process printed, or its error."""
    try:
        done = subprocess.run(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {LIMIT:.0f} s"}
    lines = done.stdout.splitlines()
    line = next((line for line in lines if line.startswith('{"')), None)  # a Trainer prints {'loss': …}
    if line is not None and done.returncode == 0:
        found: dict[str, Any] = json.loads(line)
        return found
    errors = [line for line in lines if "Error" in line and "ChildFailedError" not in line]
    return {"error": errors[-1][-300:] if errors else "\n".join(lines[-5:])}


def apart(got: Any, wanted: Any) -> float | str:
    """How far all gradients together are off, relative to their norm; or which are not there."""
    if got is None or wanted is None:
        return "none"
    missing = [name for name in wanted if name not in got and bool(wanted[name].any())]
    if missing:
        return f"{len(missing)} without a gradient, {missing[0]}"
    total: float = sum(
        float((got[name] - value).square().sum()) for name, value in wanted.items() if name in got
    )
    whole = sum(float(value.square().sum()) for value in wanted.values())
    return round(math.sqrt(total / whole), 6)


CHECKS = {"overlap": overlap, "right": right, "trainer": by_trainer, "cost": cost}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu")
    parser.add_argument("--only", default=",".join(CHECKS))
    parser.add_argument("--cells", nargs="*", default=[], metavar="WORD", help="those that have every word")
    asked = parser.parse_args()
    of = {name: version(name) for name in ("torch", "transformers", "deepspeed")}
    of["device"] = torch.cuda.get_device_name(0)
    for name in asked.only.split(","):
        for found in CHECKS[name](asked.cells):
            line = record.line(of, found)
            print(*line.values(), sep=" | ", flush=True)
            for way in WAYS:
                if "error" in found[way]:
                    print(f"    {way}: {found[way]['error']}", flush=True)
            record.write([line])


if __name__ == "__main__":
    main()
