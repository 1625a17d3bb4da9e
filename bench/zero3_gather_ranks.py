"""One ZeRO-3 training after another, in one process of a stack: what is gathered, kept and learnt.

    python -m bench.zero3_gather_ranks RUNS.json --out DIR

runs in an environment with torch, transformers, peft and deepspeed. ``RUNS.json`` is a list of runs (the
fields of ``bench.zero3_runs.Run``); for each, one JSON line goes to standard output. On a CPU the ranks
are forked after the imports, on a GPU each is a process of its own.

    python -m bench.zero3_gather_ranks --table --device cuda --world 1 --size 2b --tuning lora

measures the modes of one training there and prints them as a Markdown table.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import importlib
import json
import os
import statistics
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.zero3_runs import NOTHING_AHEAD, Run
from vlmpatch_lab import forks
from vlmpatch_lab.ports import free_port
from vlmpatch_lab.run import first_cause

MODES = {  # checkpointing, with vlmpatch
    "off": ("off", False),
    "reentrant": ("reentrant", False),
    "non-reentrant": ("nonreentrant", False),
    "vlmpatch": ("nonreentrant", True),
}


# --- one rank -----------------------------------------------------------------------------------


def rank_main(run: Run, folder: str, rank: int, port: int) -> None:
    """Entry of a rank; writes ``rank<N>.json`` and the gradients of every step."""
    log = os.open(os.path.join(folder, f"rank{rank}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    report: dict[str, Any] = {"error": None}
    try:
        with process_group(run, rank, port):
            report |= train(run, Path(folder), rank)
    except Exception as error:
        traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"
    Path(folder, f"rank{rank}.json").write_text(json.dumps(report))


@contextlib.contextmanager
def process_group(run: Run, rank: int, port: int) -> Iterator[None]:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(run.world),
        "LOCAL_WORLD_SIZE": str(run.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if run.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    if run.patched:
        import vlmpatch

    import deepspeed
    import torch.distributed as dist

    from vlmpatch_lab.ranks import end_process_groups

    if run.patched:
        vlmpatch.require("zero3-recompute-release")
    if run.device == "cpu":
        from vlmpatch_lab.collectives import wait_for_every_collective

        # With vlmpatch the rank that saves alone starts no collective that could meet another.
        parted = run.scenario == "uneven" or (run.scenario == "save_alone" and not run.patched)
        wait_for_every_collective(like_nccl=parted)
    else:
        __import__("torch").cuda.set_device(rank)
    deepspeed.init_distributed(
        "gloo" if run.device == "cpu" else "nccl", auto_mpi_discovery=False, verbose=False
    )
    yield
    dist.barrier()
    end_process_groups()


def train(run: Run, folder: Path, rank: int) -> dict[str, Any]:
    import deepspeed
    import torch
    from torch.utils.checkpoint import set_checkpoint_early_stop

    from vlmpatch_lab.meters import Meter

    if run.scenario == "uneven" and run.patched:
        vars(importlib.import_module("vlmpatch.patches.deepspeed.zero3_uneven_calls"))["STILL"] = 1.5
    model = build(run)
    plain = copy.deepcopy(model) if run.device == "cpu" else None
    switch_checkpointing(run, model)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = deepspeed.initialize(model=model, model_parameters=trainable, config=config(run))[0]
    meter = Meter(model, run.measure)
    steps = []
    for number in range(run.steps):
        for micro in range(run.accumulation):
            meter.start()
            batches = [
                make_batch(run, rank, (number * run.accumulation + micro) * run.forwards + turn)
                for turn in range(run.forwards)
            ]
            with set_checkpoint_early_stop(run.early_stop):
                one_backward(run, engine, batches, number)
            steps.append(meter.stop())
        if run.device == "cpu":
            torch.save(gradients(model), folder / f"rank{rank}-step{number}.pt")
        engine.step()
        if run.scenario == "eval":
            with torch.no_grad():
                engine.eval()
                engine(**make_batch(run, rank, 1000))
                engine.train()
            steps[-1]["left_after_eval"] = meter.left()
    if run.scenario.startswith("save"):
        save(run, engine, rank)
    if plain is not None:
        torch.save(by_hand(run, plain, rank), folder / f"rank{rank}-plain.pt")
    report = {"steps": steps, "parameters": meter.total}
    if run.device == "cuda":
        report["peak_bytes"] = torch.cuda.max_memory_allocated()
    return report


def save(run: Run, engine: Any, rank: int) -> None:
    """Consolidate the weights on every rank, or as scripts do that save where ``local_rank == 0``."""
    if run.patched:
        vars(importlib.import_module("vlmpatch.patches._shared.rendezvous"))["LOOK"] = 1.0
    if run.scenario == "save" or rank == 0:
        engine._zero3_consolidated_16bit_state_dict()


def one_backward(run: Run, engine: Any, batches: list[dict[str, Any]], number: int) -> None:
    import torch

    if run.scenario == "exception" and number == 0:
        from bench.zero3_blocks import Interrupted

        engine.module.fail = True
        with contextlib.suppress(Interrupted):
            _backward(run, engine, engine(**batches[0]).loss)
        engine.module.fail = False
    loss = torch.stack([engine(**batch).loss for batch in batches]).sum()
    if run.scenario == "retain":
        _backward(run, engine, loss, retain_graph=True)
    _backward(run, engine, loss)


def _backward(run: Run, engine: Any, loss: Any, **how: Any) -> None:
    if run.backward == "loss":
        loss.backward(**how)
    else:
        engine.backward(loss, **how)


def config(run: Run) -> dict[str, Any]:
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": run.accumulation,
        "zero_optimization": {"stage": 3, **run.zero},
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    if run.dtype == "bfloat16":
        made["bf16"] = {"enabled": True}
    return made


# --- models and data ----------------------------------------------------------------------------


def build(run: Run) -> Any:
    """The model, the same on every rank, ready to train."""
    import torch

    torch.manual_seed(0)
    if run.kind == "blocks":
        from bench.zero3_blocks import Blocks

        model: Any = Blocks(run.scenario)
    else:
        from vlmpatch_lab import models

        model = models.qwen(run.kind, run.size, run.device, run.dtype)
    if run.tuning != "full" and run.kind != "blocks":
        import peft

        targets = ["q_proj", "v_proj", "up_proj", "qkv", "fc1"]
        lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets)
        lora.modules_to_save = ["merger"] if run.tuning == "to_save" else None
        model = peft.get_peft_model(model, lora)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at first, and the gradient of A with it
                torch.nn.init.normal_(parameter, std=0.1)
    return model.to(getattr(torch, run.dtype)).train()


def make_batch(run: Run, rank: int, number: int) -> dict[str, Any]:
    """A batch of one; no two ranks or turns see the same."""
    import torch

    from vlmpatch_lab import models

    seed = 1000 * number + rank
    if run.kind == "blocks":
        from bench.zero3_blocks import WIDTH

        chance = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(4, WIDTH, generator=chance)}
    dtype = getattr(torch, run.dtype)
    return {
        name: value.to(run.device, dtype if value.is_floating_point() else None)
        for name, value in models.batch(run.size, run.tokens, seed).items()
    }


def switch_checkpointing(run: Run, model: Any) -> None:
    if run.kind == "blocks":
        model.checkpointing = run.checkpointing
    elif run.checkpointing != "off":
        how = {"use_reentrant": run.checkpointing == "reentrant"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
        if run.tuning != "full":
            model.enable_input_require_grads()


# --- results ------------------------------------------------------------------------------------


def gradients(model: Any) -> dict[str, Any]:
    from deepspeed.utils import safe_get_full_grad

    found = {name: safe_get_full_grad(p) for name, p in model.named_parameters() if p.requires_grad}
    return {name: gradient.clone() for name, gradient in found.items() if gradient is not None}


def by_hand(run: Run, model: Any, rank: int) -> dict[str, Any]:
    """The gradients of the first step as plain autograd has them, averaged over the ranks."""
    import torch
    import torch.distributed as dist

    turns = range(run.accumulation * run.forwards)
    losses = [model(**make_batch(run, rank, turn)).loss for turn in turns]
    (torch.stack(losses).sum() / run.accumulation * (2 if run.scenario == "retain" else 1)).backward()
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            total = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(total)
            found[name] = total / run.world
    return found


def perform(run: Run, folder: Path) -> dict[str, Any]:
    """Run the ranks; returns their report with all gradients compared."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.iterdir():
        stale.unlink()
    on_cpu = run.device == "cpu"
    codes = forks.run(
        rank_main,
        *(run, str(folder)),
        world=run.world,
        port=free_port(),
        limit=run.limit * (1 if on_cpu else 10),
        grace=15,
        failed=lambda rank: _failed(folder, rank),
        method="fork" if on_cpu else "spawn",
    )
    return _report(run, folder, codes)


def _failed(folder: Path, rank: int) -> bool:
    path = folder / f"rank{rank}.json"
    return path.exists() and '"error": null' not in path.read_text()


def _report(run: Run, folder: Path, codes: list[int | None]) -> dict[str, Any]:
    ranks = []
    for rank, code in enumerate(codes):
        path = folder / f"rank{rank}.json"
        report: dict[str, Any] = {"error": f"ended with exit code {code}"}
        if path.exists():
            report = json.loads(path.read_text())
        if code and not report["error"]:
            report["error"] = f"exit code {code} after its work"
        ranks.append(report)
    ended = [{"ok": not report["error"], "error": report["error"]} for report in ranks]
    result: dict[str, Any] = {"id": run.id, "error": first_cause(ended)}
    if result["error"] is None:
        result |= ranks[0]
        result["left"] = sorted(
            {name for report in ranks for step in report["steps"] for name in step["left"]}
        )
        if run.device == "cpu":
            result["difference"] = _to_plain(run, folder)
    return result


def _to_plain(run: Run, folder: Path) -> float:
    names = (f"rank{rank}" for rank in range(run.world))
    return max(_apart(folder / f"{name}-step0.pt", folder / f"{name}-plain.pt") for name in names)


def _apart(got: Path, right: Path) -> float:
    """The largest relative difference over all tensors; a missing gradient counts as zeros."""
    import torch

    from vlmpatch_lab.compare import difference

    worst, _ = difference(torch.load(got), torch.load(right))
    return worst if worst == worst else float("inf")


def between(run: Run, other: Run, out: Path) -> float:
    """The largest difference between two runs' gradients, over all steps and ranks."""
    return max(
        _apart(out / run.id / name, out / other.id / name)
        for name in (f"rank{rank}-step{step}.pt" for rank in range(run.world) for step in range(run.steps))
    )


def table(runs: dict[str, Run], results: dict[str, dict[str, Any]]) -> str:
    """Markdown: one line a mode."""
    lines = ["| | gather calls | elements / parameters | peak elements / parameters | step | peak memory |"]
    lines += ["|---|---|---|---|---|---|"]
    for name in runs:
        result = results[name]
        if result["error"]:
            lines.append(f"| {name} | {result['error'][:90]} | | | | |")
            continue
        step = result["steps"][-1]
        seconds = statistics.median(step["seconds"] for step in result["steps"][2:] or result["steps"])
        memory = f"{result['peak_bytes'] / 2**30:.2f} GiB" if "peak_bytes" in result else ""
        whole = result["parameters"]
        lines.append(
            f"| {name} | {step['calls']} | {step['elements'] / whole:.2f} | {step['peak'] / whole:.3f} "
            f"| {seconds * 1000:.0f} ms | {memory} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.zero3_gather_ranks")
    parser.add_argument("runs", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="measure the modes of one training")
    plain = Run()
    for option in ("kind", "tuning", "forwards", "steps", "size", "world", "device", "dtype", "tokens"):
        default = getattr(plain, option)
        parser.add_argument(f"--{option}", type=type(default), default=default)
    parser.add_argument("--zero", type=json.loads, default=dict(NOTHING_AHEAD), help="JSON")
    parser.add_argument("--no-count", action="store_true", help="time only")
    asked = vars(parser.parse_args())
    out = asked.pop("out") or Path(tempfile.mkdtemp(prefix="gather-"))
    path, as_table, uncounted = asked.pop("runs"), asked.pop("table"), asked.pop("no_count")
    _preload(asked["device"] if as_table else "cpu")
    if as_table:
        common = Run(**asked, measure=not uncounted)
        runs = {
            name: dataclasses.replace(common, checkpointing=how, patched=patched)
            for name, (how, patched) in MODES.items()
        }
        print(table(runs, {name: perform(run, out / run.id) for name, run in runs.items()}), flush=True)
        return
    for run in [Run(**entry) for entry in json.loads(path.read_text())]:
        result = perform(run, out / run.id)
        right = dataclasses.replace(run, checkpointing="off", patched=False)
        if result["error"] is None and (out / right.id / "rank0-step0.pt").exists():
            result["to_off"] = between(run, right, out)
        print(json.dumps(result), flush=True)


def _preload(device: str) -> None:
    """Import the stack before the forks."""
    if device != "cpu":
        return
    os.environ["DS_ACCELERATOR"] = "cpu"
    import peft  # noqa: F401

    from vlmpatch_lab import engines

    engines.preload_engine()


if __name__ == "__main__":
    main()
